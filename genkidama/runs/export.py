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

from genkidama.errors import EnvironmentFailure
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
    #: The states of a memory after them, (n, H).
    states: Array | None = None


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
        ConfigurationError: its network or head has no such form, or torch is missing for ONNX.
        EnvironmentFailure: the file computes something else than NumPy, another package is missing,
            or it cannot be written; an older one stays as it was.
    """
    path = Path(path)
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
    """Observations (n, …), float32: as in training, and far off. With a memory they are rows, as
    the model has them: each behind a state that it could have come to."""
    model, rng = policy.model, np.random.default_rng(0)
    shape = (_COMPARED, *model.observation_shape)
    if policy.observation_space.dtype in (np.uint8, np.bool_):
        high = 256 if policy.observation_space.dtype == np.uint8 else 2
        found: Array = rng.integers(0, high, shape)
    else:
        each = (_COMPARED, *(1 for _ in model.observation_shape))
        found = rng.standard_normal(shape, np.float32) * 10.0 ** rng.uniform(-1.0, 1.5, each)
        if (scale := model.mean_and_deviation()) is not None:
            found = found * scale[1] + scale[0]
    if model.memory:
        found = found.astype(np.float32, copy=False)
        found[:, : model.memory] = rng.uniform(-1.0, 1.0, (_COMPARED, model.memory))
    if model.mask:
        valid = rng.random((_COMPARED, model.mask)) < 0.5
        found[:, -model.mask :] = valid | ~valid.any(1, keepdims=True)
    return found.astype(np.float32, copy=False)


def _difference(policy: Policy, observations: Array, found: _Computed) -> float:
    """The largest difference between outputs; a ValueError says that results are other ones."""
    model, head = policy.model, policy.model.head
    batches = np.array_split(observations, len(observations) // _BATCH)
    parts = []
    for batch in batches:
        outputs, values = model.evaluate(model.native(model.seen(batch)))
        state = (np.array(model.network.state),) if model.memory else ()
        parts.append((outputs[:, : found.outputs.shape[1]], values, *state))
    differences = []
    for name, theirs, each in zip(
        ("outputs", "values", "states"),
        (found.outputs, found.values, found.states),
        zip(*parts, strict=True),
        strict=False,  # without a memory there are no states
    ):
        if theirs is not None:
            ours = np.concatenate(each)
            largest = np.abs(ours[ours > INVALID]).max(initial=1.0)
            # Without critics a value is NaN on both sides.
            if not np.allclose(theirs, ours, _TOLERANCE, _TOLERANCE * largest, equal_nan=True):
                raise ValueError(f"its {name} differ from NumPy's")
            differences.append(np.nan_to_num(np.abs(theirs - ours)).max())
    if found.actions is not None:
        rows = [np.ravel(head.to_environment(head.mode(row))) for row in found.outputs]
        actions = np.asarray(rows).astype(head.dtype)
        # Of continuous ones tanh differs by rounding.
        near = _TOLERANCE * np.abs(actions).max() if head.dtype == np.float32 else 0.0
        if not np.allclose(actions, found.actions, 0.0, near):
            raise ValueError("its actions are not those of its outputs")
    return float(max(differences))


# C.

_C_CHECK = """\
#include <stdio.h>
#include <string.h>
#include "policy.h"

int main(void)
{
    float given[$units + POLICY_INPUTS + $masks], outputs[POLICY_OUTPUTS], state[$units + 1];
    float *observation = given + $units;
    $type action[POLICY_ACTIONS];
    double found[POLICY_OUTPUTS + POLICY_ACTIONS + $units];

    while (fread(given, sizeof given, 1, stdin) == 1) {
        unsigned char mask[$masks + 1];
        for (int i = 0; i < $masks; i++)
            mask[i] = observation[POLICY_INPUTS + i] > 0.0f;
        (void)mask;
        memcpy(state, given, $units * sizeof *state);
        $act;
        for (int i = 0; i < $units; i++)
            found[POLICY_OUTPUTS + POLICY_ACTIONS + i] = state[i];
        memcpy(state, given, $units * sizeof *state);
        policy_outputs(observation$more, outputs);
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
    more = ", state" * bool(network.memory) + ", mask" * network.masked
    act = f"policy_act(observation{more}, action)"
    program = Template(_C_CHECK).substitute(
        masks=network.widths[-1] if network.masked else 0,
        units=network.units,
        more=more,
        type="int" if network.choices else "float",
        act=f"action[0] = policy_act(observation{more})" if network.single else act,
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
import * as policy from "./policy.mjs";

const given = new Float32Array(new Uint8Array(readFileSync(0)).buffer);
const width = Number(process.argv[2]);
const units = policy.MEMORY ?? 0;
const found = [];
for (let start = 0; start < given.length; start += width) {
  const row = given.subarray(start, start + width);
  const observation = row.subarray(units, units + policy.INPUTS);
  const more = [];
  if (units) more.push(row.slice(0, units));
  if (width > units + policy.INPUTS) more.push(row.subarray(units + policy.INPUTS));
  found.push(...policy.outputs(observation, ...more));
  if (units) more[0] = row.slice(0, units);
  const action = policy.act(observation, ...more);
  found.push(...(typeof action === "number" ? [action] : action));
  if (units) found.push(...more[0]);
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
    """The results of a program that writes rows of float64: outputs, actions, and states."""
    ends = np.cumsum((network.widths[-1], network.actions, network.units))
    rows = np.frombuffer(output).reshape(-1, ends[-1])
    outputs, actions, states = np.split(rows, ends[:-1], axis=1)
    return _Computed(
        outputs.astype(np.float32),
        actions.astype(policy.model.head.dtype),
        states=states.astype(np.float32) if network.memory else None,
    )


# ONNX.


def _onnx(policy: Policy, path: Path) -> _Made:
    model = as_tensors(policy.model, policy, "Policy.to_onnx", "onnx")
    content = load_tensors("tensor_model:to_onnx", "Policy.to_onnx")(model, policy)

    def run(observations: Array) -> _Computed:
        import onnxruntime

        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        memory, shape = model.memory, policy.observation_space.shape or ()
        names = [output.name for output in session.get_outputs()]
        parts = []
        for batch in np.array_split(observations, len(observations) // _BATCH):
            given = {"observation": batch[:, memory:].reshape(-1, *shape)}
            if memory:
                given["state"] = batch[:, :memory]
            parts.append(session.run(None, given))
        found = dict(zip(names, map(np.concatenate, zip(*parts, strict=True)), strict=True))
        actions, values = found.get("action"), found["value"]
        if actions is not None:
            actions = actions.reshape(len(values), -1)
        return _Computed(found["outputs"], actions, values, found.get("next_state"))

    return _Made(content, "", "ONNX Runtime", run if find_spec("onnxruntime") else None)


#: The forms of a policy, by the word for it.
FORMS: dict[str, Callable[[Policy, Path], _Made]] = {"c": _c, "js": _js, "onnx": _onnx}
