"""Policies as files for other programs: C, JavaScript, ONNX. Each is compared with NumPy first.

The comparison runs what was made as its users will, on 1,000 observations: in a compiled program,
in Node.js, in ONNX Runtime. Where that is missing, `Export.checked` says so.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.actions import INVALID
from genkidama.learning.forms import as_tensors, load_tensors
from genkidama.runs.codegen import ActingNetwork, acting_network, prefixed, to_c, to_js
from genkidama.runtime.files import write_atomically

if TYPE_CHECKING:
    from genkidama.runs.policy import Policy

Array = npt.NDArray[Any]

#: Observations that are compared, and how many at once.
_COMPARED, _BATCH = 1000, 100

#: Outputs may differ from NumPy's by this share of their own and of the largest one.
_TOLERANCE = 1e-4

#: Seconds that a compiler may take, and so may the program.
_PATIENCE = 300.0


@dataclass(frozen=True)
class Export:
    """A file that was written."""

    path: Path
    #: Its sizes, in words.
    size: str
    #: The result of the comparison with NumPy, or the reason why there was none, in words.
    checked: str


class _Computed(NamedTuple):
    """Results of n observations."""

    #: (n, outputs); without the deviations of continuous actions where nothing gives them.
    outputs: Array
    #: Actions as the environment takes them, (n, numbers), and V(s), (n,), if they are given.
    actions: Array | None
    values: Array | None = None


class _Made(NamedTuple):
    """A policy in some form."""

    content: bytes
    size: str
    #: The program that compares it, and its results of observations (n, …) of float32; None if it
    #: is not there.
    checker: str
    run: Callable[[Array], _Computed] | None


def export(policy: Policy, form: str, path: str | Path) -> Export:
    """Writes a policy as a file.

    Args:
        policy: the policy.
        form: `"c"`, `"js"` or `"onnx"`.
        path: the file.

    Raises:
        ConfigurationError: its network or head has no such form, as one with a memory, or torch is
            missing for ONNX.
        EnvironmentFailure: the file computes something else than NumPy, another package is missing,
            or it cannot be written; an older one stays as it was.
    """
    path = Path(path)
    if memory := policy.model.memory:
        raise ConfigurationError(
            f"network.memory = {memory}: a policy with a memory has no form in C, JavaScript or "
            "ONNX; play it in Python, as policy.predict(observation, state)"
        )
    made = FORMS[form](policy, path)
    if made.run is None:
        checked = f"not compared with NumPy: there is no {made.checker} here"
    else:
        observations = _observations(policy)
        computed = made.run(observations)
        try:
            difference = _difference(policy, observations, computed)
        except ValueError as error:
            raise EnvironmentFailure(f"{path}: not written: by {made.checker} {error}") from None
        checked = (
            f"compared with NumPy by {made.checker} on {_COMPARED:,} observations: "
            f"largest difference {difference:.1e}"
        )
    try:
        write_atomically(path, made.content)
    except ValueError as error:  # no name of a file
        raise EnvironmentFailure(f"{str(path)!r}: cannot be written: {error}") from None
    return Export(path, f"{len(made.content):,} bytes{made.size}", checked)


def _observations(policy: Policy) -> Array:
    """Observations (n, …), float32: as in training, and far off."""
    model, rng = policy.model, np.random.default_rng(0)
    shape = (_COMPARED, *model.observation_shape)
    if policy.observation_space.dtype in (np.uint8, np.bool_):
        high = 256 if model.sees_bytes else 2
        found: Array = rng.integers(0, high, shape)
    else:
        each = (_COMPARED, *(1 for _ in model.observation_shape))
        found = rng.standard_normal(shape, np.float32) * 10.0 ** rng.uniform(-1.0, 1.5, each)
        if (scale := model.mean_and_deviation()) is not None:
            found = found * scale[1] + scale[0]
    if model.mask:
        valid = rng.random((_COMPARED, model.mask)) < 0.5
        found[:, -model.mask :] = valid | ~valid.any(1, keepdims=True)
    return found.astype(np.float32, copy=False)


def _difference(policy: Policy, observations: Array, found: _Computed) -> float:
    """The largest difference between outputs; a ValueError says that results are other ones."""
    model, head = policy.model, policy.model.head
    batches = np.array_split(observations, len(observations) // _BATCH)
    parts = [model.evaluate(model.native(model.seen(batch))) for batch in batches]
    outputs, values = (np.concatenate(each) for each in zip(*parts, strict=True))
    outputs = outputs[:, : found.outputs.shape[1]]
    differences = []
    for name, theirs, ours in (
        ("outputs", found.outputs, outputs),
        ("values", found.values, values),
    ):
        if theirs is not None:
            largest = np.abs(ours[ours > INVALID]).max(initial=1.0)
            # Without critics a value is NaN on both sides.
            if not np.allclose(theirs, ours, _TOLERANCE, _TOLERANCE * largest, equal_nan=True):
                raise ValueError(f"its {name} differ from NumPy's")
            differences.append(np.nan_to_num(np.abs(theirs - ours)).max())
    if found.actions is not None:
        actions = [np.ravel(head.to_environment(head.mode(row))) for row in found.outputs]
        if not np.array_equal(np.asarray(actions).astype(head.dtype), found.actions):
            raise ValueError("its actions are not those of its outputs")
    return float(max(differences))


# C.

_C_CHECK = """\
#include <stdio.h>
#include "policy.h"

int main(void)
{
    float given[POLICY_INPUTS + $masks], outputs[POLICY_OUTPUTS];
    $type action[POLICY_ACTIONS];
    double found[POLICY_OUTPUTS + POLICY_ACTIONS];

    while (fread(given, sizeof given, 1, stdin) == 1) {
        unsigned char mask[$masks + 1];
        for (int i = 0; i < $masks; i++)
            mask[i] = given[POLICY_INPUTS + i] > 0.0f;
        (void)mask;
        policy_outputs(given$mask, outputs);
        $act;
        for (int i = 0; i < POLICY_OUTPUTS; i++)
            found[i] = outputs[i];
        for (int i = 0; i < POLICY_ACTIONS; i++)
            found[POLICY_OUTPUTS + i] = action[i];
        fwrite(found, sizeof found, 1, stdout);
    }
    return 0;
}
"""


def _c(policy: Policy, path: Path) -> _Made:
    network = acting_network(policy, "C")
    prefix = re.sub(r"\W", "_", path.stem.lower(), flags=re.ASCII)
    prefix = prefix if prefix[:1].isalpha() else f"policy_{prefix}"
    text = to_c(network, prefix).encode()
    compiler = os.environ.get("CC", "").split() or ["cc"]
    mask = ", mask" if network.masked else ""
    act = f"policy_act(given{mask}, action)"
    program = Template(_C_CHECK).substitute(
        masks=network.widths[-1] if network.masked else 0,
        mask=mask,
        type="int" if network.choices else "float",
        act=f"action[0] = policy_act(given{mask})" if network.single else act,
    )

    def run(observations: Array) -> _Computed:
        with TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "policy.h").write_bytes(text)
            (folder / "check.c").write_text(prefixed(program, prefix))
            _output([*compiler, "-std=c99", "-O1", "check.c", "-o", "check", "-lm"], folder)
            return _rows(policy, network, _output(["./check"], folder, observations.tobytes()))

    size = f"; in memory {network.constants:,} of constants, {network.stack:,} on the stack"
    there = shutil.which(compiler[0]) is not None
    return _Made(text, size, compiler[0], run if there else None)


# JavaScript.

_JS_CHECK = """\
import { readFileSync } from "node:fs";
import { INPUTS, OUTPUTS, act, outputs } from "./policy.mjs";

const given = new Float32Array(new Uint8Array(readFileSync(0)).buffer);
const width = Number(process.argv[2]);
const found = [];
for (let start = 0; start < given.length; start += width) {
  const observation = given.subarray(start, start + INPUTS);
  const mask = width > INPUTS ? given.subarray(start + INPUTS, start + width) : undefined;
  const action = act(observation, mask);
  found.push(...outputs(observation, mask));
  found.push(...(typeof action === "number" ? [action] : action));
}
process.stdout.write(Buffer.from(Float64Array.from(found).buffer));
"""


def _js(policy: Policy, path: Path) -> _Made:
    network = acting_network(policy, "JavaScript")
    text = to_js(network, path.name).encode()

    def run(observations: Array) -> _Computed:
        with TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "policy.mjs").write_bytes(text)
            (folder / "check.mjs").write_text(_JS_CHECK)
            command = ["node", "check.mjs", str(observations.shape[1])]
            return _rows(policy, network, _output(command, folder, observations.tobytes()))

    return _Made(text, "", "node", run if shutil.which("node") is not None else None)


def _output(command: list[str], folder: Path, given: bytes = b"") -> bytes:
    """Standard output of a program; an EnvironmentFailure says in one line how it fails."""
    program = Path(command[0]).name
    try:
        done = subprocess.run(
            command, cwd=folder, input=given, capture_output=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFailure(f"{program}: {error}") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines()]
        said = next((line for line in lines if "rror" in line), "") or " ".join(lines[:1])
        raise EnvironmentFailure(f"{program} fails with exit code {done.returncode}: {said}")
    return done.stdout


def _rows(policy: Policy, network: ActingNetwork, output: bytes) -> _Computed:
    """The results of a program that writes rows of float64: outputs, and then actions."""
    count = network.widths[-1]
    rows = np.frombuffer(output).reshape(-1, count + network.actions)
    outputs, actions = np.split(rows, [count], axis=1)
    return _Computed(outputs.astype(np.float32), actions.astype(policy.model.head.dtype))


# ONNX.


def _onnx(policy: Policy, path: Path) -> _Made:
    model = as_tensors(policy.model, policy, "Policy.to_onnx", "onnx")
    content = load_tensors("tensor_model:to_onnx", "Policy.to_onnx")(model, policy.action_space)

    def run(observations: Array) -> _Computed:
        import onnxruntime

        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        batches = np.array_split(observations, len(observations) // _BATCH)
        parts = [session.run(None, {"observation": batch}) for batch in batches]
        outputs, values, *actions = (np.concatenate(each) for each in zip(*parts, strict=True))
        found = actions[0].reshape(len(values), -1) if actions else None
        return _Computed(outputs, found, values)

    return _Made(content, "", "ONNX Runtime", run if find_spec("onnxruntime") else None)


#: The forms of a policy, by the word for it.
FORMS: dict[str, Callable[[Policy, Path], _Made]] = {"c": _c, "js": _js, "onnx": _onnx}
