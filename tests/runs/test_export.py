"""Policies that are compared with NumPy before they are written, and what is said of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from genkidama.__main__ import main
from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment, Network
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runs import codegen, export
from genkidama.runs.policy import Policy
from tests.helpers import small, untrained
from tests.runs.test_codegen import policy_of
from tests.texts import code_block

CHECKERS = {"c": "cc", "js": "node"}

COMPARED = re.compile(
    r"compared with NumPy by (.+) on 1,000 observations: largest difference (\S+)"
)


class Camera(gymnasium.Env[Any, Any]):
    """It sees small pictures."""

    observation_space = gymnasium.spaces.Box(0, 255, (3, 12, 12), np.uint8)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))


@pytest.mark.parametrize("form", CHECKERS)
@pytest.mark.parametrize("case", ["masks", "memory"])
def test_it_is_compared_and_written(tmp_path: Path, form: str, case: str) -> None:
    if shutil.which(CHECKERS[form]) is None:
        pytest.skip(f"there is no {CHECKERS[form]}")
    masks, network = (11, {}) if case == "masks" else (0, {"memory": 9})
    actions = "columns" if masks else "box"
    policy = policy_of(tmp_path / "run", actions, masks, normalized=True, **network)
    found = export.export(policy, form, path := tmp_path / f"a policy.{form}")
    assert found.path == path and path.read_bytes()
    assert found.size.startswith(f"{path.stat().st_size:,} bytes")
    said = COMPARED.fullmatch(found.checked)
    assert said is not None and said[1] == CHECKERS[form]
    assert 0.0 < float(said[2]) < 1e-4


@pytest.mark.parametrize(
    ("template", "right", "wrong", "said"),
    [
        ("_C_HEAD", "sum = b[row]", "sum = 0.001f", "outputs differ"),
        ("_C_MASK", "!mask[i]", "mask[i]", "outputs differ"),
        ("_C_LARGEST", "x[i] > x[best]", "x[i] < x[best]", "actions are not those of its outputs"),
        ("_JS_TAIL", "let i = 0", "let i = 1", "outputs differ"),
        ("_JS_LARGEST", "value > x[best]", "value < x[best]", "actions are not those of its"),
        (
            "_C_MEMORY",
            "update * (state[i] - fresh)",
            "update * (fresh - state[i])",
            "outputs differ",
        ),
        ("_JS_MEMORY", "state[i] = fresh + ", "state[i] += fresh + ", "outputs differ"),
        ("_JS_MEMORY", "return state", "x = [...state]; state.fill(0); return x", "states differ"),
    ],
)
def test_code_that_computes_something_else_is_not_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    template: str,
    right: str,
    wrong: str,
    said: str,
) -> None:
    form = "c" if "_C_" in template else "js"
    if shutil.which(CHECKERS[form]) is None:
        pytest.skip(f"there is no {CHECKERS[form]}")
    remembers = {"memory": 5} if "MEMORY" in template else {}
    policy = policy_of(tmp_path / "run", "discrete", masks=3, **remembers)
    policy.model.numbers[:] += 0.01  # biases, too
    (path := tmp_path / "policy").write_text("old")
    text = getattr(codegen, template)
    assert right in text
    monkeypatch.setattr(codegen, template, text.replace(right, wrong))
    with pytest.raises(EnvironmentFailure, match=f"policy: not written: by .* its {said}"):
        export.export(policy, form, path)
    assert path.read_text() == "old"


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is neither a compiler nor Node.js."""
    monkeypatch.setenv("PATH", "")


@pytest.mark.parametrize("form", CHECKERS)
def test_without_a_checker_it_is_written_and_said(
    tmp_path: Path, unchecked: None, form: str
) -> None:
    policy = policy_of(tmp_path / "run", "discrete")
    found = export.export(policy, form, tmp_path / "policy")
    assert found.checked == f"not compared with NumPy: there is no {CHECKERS[form]} here"
    assert found.path.stat().st_size > 1000


def test_the_compiler_is_that_of_the_environment_and_its_failure_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_of(tmp_path / "run", "discrete")
    compiler = tmp_path / "mine"
    compiler.write_text("#!/bin/sh\necho 'policy.h:3: error: no idea' >&2\nexit 3\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", f"{compiler} -O2")
    with pytest.raises(EnvironmentFailure, match=r"mine fails with exit code 3: policy.h:3: error"):
        policy.to_c(tmp_path / "policy.h")
    assert not (tmp_path / "policy.h").exists()


@pytest.mark.parametrize(
    ("name", "prefix"),
    [("Arm-3.h", "arm_3"), ("policy.h", "policy"), ("3 legs.h", "policy_3_legs")],
)
def test_names_in_c_begin_with_the_name_of_the_file(
    tmp_path: Path, unchecked: None, name: str, prefix: str
) -> None:
    policy = policy_of(tmp_path / "run", "discrete")
    text = policy.to_c(tmp_path / name).read_text()
    assert f"static inline int {prefix}_act(const float *observation)" in text
    assert f"#ifndef {prefix.upper()}_H\n" in text


@pytest.mark.parametrize("name", ["", "\0.h", "none/policy.h"])
def test_a_file_that_cannot_be_written_is_one_line(
    tmp_path: Path, unchecked: None, name: str
) -> None:
    policy = policy_of(tmp_path / "run", "discrete")
    with pytest.raises(EnvironmentFailure, match="cannot be written"):
        policy.to_js(tmp_path / name)


def test_the_verb_writes_into_the_run_and_says_what_it_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no cc")
    run = untrained(tmp_path / "run", small())
    assert main(["export", str(run.path), "--as", "c"]) == 0
    weights, sizes, compared = capsys.readouterr().out.splitlines()
    assert weights == f"CartPole-v1: weights of version 1 ({run.final})"
    header = run.path / "policy.h"
    # 4 → 8 → 2, and 8 and 2 of arrays.
    bytes_of = f"{header.stat().st_size:,} bytes; in memory {4 * 58} of constants, 40 on the stack"
    assert sizes == f"{header}: {bytes_of}"
    assert COMPARED.fullmatch(compared)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")  # to compare it once is enough
    assert main(["export", str(run.final), "--as", "js"]) == 0
    assert "export function act(observation)" in (tmp_path / "policy.js").read_text()
    assert main(["export", str(run.path), "--as", "js", "--out", "web.mjs"]) == 0
    assert 'from "./web.mjs"' in (tmp_path / "web.mjs").read_text()


def test_the_verb_refuses_what_it_cannot_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = untrained(tmp_path / "run", small(network={"activation": "tanh"}))
    with pytest.raises(SystemExit):
        main(["export", str(run.path), "--as", "rust"])
    assert "invalid choice: 'rust'" in capsys.readouterr().err
    assert main(["export", str(tmp_path), "--as", "c"]) == 2
    assert "holds no run" in capsys.readouterr().err


CAMERA = Experiment(
    environment=Environment(id="tests.runs.test_export:Camera"),
    network=Network(name="convolutional", convolutions=((4, 4, 2),), hidden=(8,)),
)

SQUASHED = small(
    environment={"id": "tests.tiny:Turning"}, algorithm={"name": "sac"}, replay={"steps": 1000}
)


@pytest.mark.slow
@pytest.mark.parametrize("experiment", [CAMERA, SQUASHED])
def test_onnx_takes_what_c_does_not(tmp_path: Path, experiment: Experiment) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    policy = Policy(untrained(tmp_path / "run", experiment).load(), allow=["tests"])
    with pytest.raises(ConfigurationError, match="has no form in C; take ONNX"):
        policy.to_c(tmp_path / "policy.h")
    found = export.export(policy, "onnx", tmp_path / "policy.onnx")
    outputs = onnxruntime.InferenceSession(tmp_path / "policy.onnx").get_outputs()
    assert [output.name for output in outputs] == ["outputs", "value", "action"]
    said = COMPARED.fullmatch(found.checked)
    assert said is not None and said[1] == "ONNX Runtime" and float(said[2]) < 1e-4


@pytest.mark.slow
def test_the_code_on_the_page_works_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if shutil.which("cc") is None or shutil.which("node") is None:
        pytest.skip("there is no cc, or no node")
    page = "docs/notes/export.md"
    policy = Policy(untrained(tmp_path / "run", small()).load())
    for write, name in ((policy.to_c, "h"), (policy.to_js, "js"), (policy.to_onnx, "onnx")):
        write(tmp_path / f"policy.{name}")
    expected, _ = policy.predict([0.1, -0.2, 0.0, 0.3], deterministic=True)
    (tmp_path / "main.c").write_text(code_block(page, "c"))
    (tmp_path / "main.js").write_text(code_block(page, "js"))
    (tmp_path / "package.json").write_text('{"type": "module"}')
    program = "cc -std=c99 -Wall -Werror main.c -lm -o main && ./main && node main.js"
    said = subprocess.run(program, shell=True, cwd=tmp_path, capture_output=True, check=True)
    assert said.stdout.decode().split() == [str(expected)] * 2
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code_block(page, "python", "import numpy, onnxruntime"), names)
    zeros, _ = policy.predict(np.zeros((1, 4)), deterministic=True)
    assert np.array_equal(names["actions"], zeros) and names["onnxruntime"] is onnxruntime
