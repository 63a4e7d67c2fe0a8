"""The first pages of docs/: the code of each, taken from there and put to work."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

import genkidama
from genkidama.cli.cluster import train
from genkidama.cli.parser import make_parser
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.learning.a3c import A3C
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout
from genkidama.runtime.import_strings import load_object
from tests.helpers import ROOT, command, starting, until
from tests.learning.test_device import free_address
from tests.texts import code_block, code_blocks

ALGORITHMS = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
EXTENDING = "docs/notes/extending.md"

#: The page of each module, words of its code and of its experiment.
MODULES = {
    "dial": ("docs/environment.md", "class Dial", "dial:Dial"),
    "residual": (EXTENDING, "class Residual", "residual:Residual"),
    "modest": (EXTENDING, "class Modest", "modest:Modest"),
}

#: The least mean of an evaluation after each run; chance is −15 with the dial, and 22.
LEARNED = {"dial": -4.5, "residual": 100.0, "modest": 80.0}


def experiment(module: str) -> Experiment:
    """The module's experiment, with a name as its file gives it."""
    page, _, words = MODULES[module]
    settings = tomllib.loads(code_block(page, "toml", words)) | {"name": module}
    return Experiment.from_dict(settings)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the modules of the pages, from which everybody can import them."""
    folder = tmp_path_factory.mktemp("mine")
    for module, (page, words, _) in MODULES.items():
        (folder / f"{module}.py").write_text(code_block(page, "python", words), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{folder}")
        yield folder
    for module in MODULES.values():
        sys.modules.pop(module, None)


def test_the_environment_keeps_gymnasiums_promises() -> None:
    environment = make_environment(experiment("dial").environment)
    assert isinstance(environment.action_space, gymnasium.spaces.Discrete)
    check_env(environment.unwrapped, skip_render_check=True)


def test_the_network_takes_its_options_and_has_gradients() -> None:
    subject = experiment("residual")
    model = Model(subject, make_environment(subject.environment))
    assert dict(model.signature.entries)["inner.weight"] == (48, 48)
    outputs, values = model.network(torch.zeros(5, 4))
    assert outputs.shape == (5, 2) and values.shape == (5,)
    (outputs.sum() + values.sum()).backward()
    assert model.gradient.any()


def test_the_learner_adds_its_penalty_to_the_loss_of_a3c() -> None:
    subject = experiment("modest")
    model = Model(subject, make_environment(subject.environment))
    rng = torch.Generator().manual_seed(0)
    rollout = steps(20)
    modest = load_object("modest:Modest", "algorithm.name")(subject.algorithm, model)
    (loss,) = modest.losses(rollout, rng)
    (plain,) = A3C(subject.algorithm, model).losses(rollout, rng)
    penalty = 1e-4 * float(np.square(model.numbers).sum())
    assert (loss - plain).item() == pytest.approx(penalty, rel=1e-2) and penalty > 1e-4


def steps(count: int) -> Rollout:
    """So many steps of nothing in particular, cut after the last."""
    rng = np.random.default_rng(0)
    seen = torch.from_numpy(rng.standard_normal((count + 1, 4)).astype(np.float32))
    ends = np.arange(count) == count - 1
    cuts = np.array([count - 1], np.intp)
    rewards = np.ones(count, np.float32)
    return Rollout(seen[:-1], torch.zeros(count, 1), rewards, ends, cuts, seen[-1:])


def test_every_command_of_the_path_is_one() -> None:
    parser = make_parser()
    typed = [
        re.split(r" {2,}#", line)[0].strip()
        for page in [*sorted(ROOT.glob("docs/*.md")), ROOT / EXTENDING]
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.match(r"(    )?genkidama \w", line)
    ]
    assert len(typed) >= 14
    for line in typed:
        parser.parse_args(re.sub(r"['`]", "", line).split()[1:])


def test_no_page_has_a_robot_play_500_episodes_at_a_runs_end() -> None:
    """Each takes its time by the wall clock: `train` plays them at `environment.period`."""
    kinds = ("*.md", "docs/**/*.md", "examples/*/*.md", "examples/*/*.toml")
    pages = [page for kind in kinds for page in ROOT.glob(kind)]
    timed = []
    for page in pages:
        folder = page.parent
        for line in page.read_text(encoding="utf-8").replace("\\\n", "").splitlines():
            if found := re.search(r"\bcd (examples/\w+)", line):
                folder = ROOT / found[1]
            if not (found := re.search(r"genkidama train (\S+\.toml)\b(.*)", line)):
                continue
            file = next((at / found[1] for at in (ROOT, folder) if (at / found[1]).is_file()), None)
            if file and Experiment.load(file).environment.period:
                timed.append(found[0])
    assert len(timed) >= 5
    assert [line for line in timed if "--episodes " not in line] == []


@pytest.mark.parametrize("line", re.findall(r'(?m)^\| `"(\w+)"` \|(.+)\|$', ALGORITHMS))
def test_the_table_of_what_goes_together_is_true(line: tuple[str, str]) -> None:
    name, cells = line
    ways: list[dict[str, Any]] = [
        {"parent.rule": "gradient", "child.exchange": "update"},
        {"parent.rule": "experience"},
        {"child.backend": "ga3c", "child.exchange": "free"},
    ]
    told = [cell.strip() == "yes" for cell in cells.split("|")]
    changes: dict[str, Any] = {"algorithm.name": name}
    if name in ("dqn", "vtrace"):
        changes["replay.steps"] = 1000
    for way, fits in zip(ways, told, strict=True):
        if fits:
            Experiment().with_settings(changes | way)
        else:
            with pytest.raises(ConfigurationError):
                Experiment().with_settings(changes | way)


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_what_a_page_trains_learns_to_its_end(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = train(experiment(module), children=1, cores=1, episodes=20, out=f"runs/{module}")
    (end,) = (line["reason"] for line in run.history() if line["event"] == "stop")
    assert end.startswith("mean return ")  # the page's number, not its seconds
    assert genkidama.evaluate(run, episodes=50).mean >= LEARNED[module]
    assert not [path for path in (run.path / "logs").iterdir() if "Traceback" in path.read_text()]
    if module == "dial":
        names: dict[str, Any] = {}
        exec(compile(code_block("docs/evaluation.md", "python"), "evaluation.md", "exec"), names)
        assert names["over"] and names["returns"][-1] >= -4.0


@pytest.mark.slow
def test_one_machine_holds_the_weights_and_another_plays(tmp_path: Path) -> None:
    """The two commands of `machines.md`, up to a mean of 200, and the third."""
    typed = code_blocks("docs/machines.md", "bash")
    assert typed[1].startswith("genkidama join 'wss://")
    more = f" --listen {free_address()} --host 127.0.0.1 --credentials keys"
    with starting(tmp_path) as start:
        parent = start(f"{typed[0]} {more} --set stop.mean_return=200")
        until(lambda: "genkidama join " in parent.out + parent.err, "a command to run")
        (line,) = re.findall(r"genkidama join '\S+'", parent.out + parent.err)
        child = start(line)
        assert (parent.wait(300.0), child.wait(60.0)) == (0, 0), parent.err + child.err
    found = command(tmp_path, f"{typed[2]} --episodes 50", seconds=120.0)
    mean = re.match(r"runs/shelf: (\S+) ± ", found.out)
    assert mean and float(mean[1]) >= 150.0, found
