"""The code of policies in C and JavaScript, beside `Policy.predict`."""

from __future__ import annotations

import json
import shutil
import subprocess
from ctypes import CDLL
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Algorithm, Environment, Network
from genkidama.errors import ConfigurationError
from genkidama.learning.a3c import A3C
from genkidama.learning.heads import Categorical, Gaussian, MultiCategorical, is_plain
from genkidama.plugins.gorila.settings import ReplaySettings
from genkidama.runs import codegen
from genkidama.runs.codegen import acting_network, to_c, to_js
from genkidama.runs.policy import Policy
from tests.helpers import untrained

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion", "-Wshadow")

SPACES: dict[str, gymnasium.Space[Any]] = {
    "discrete": Discrete(3),
    "from -1": Discrete(3, start=-1),
    "box": Box(np.float32([-1, -np.inf, 0.1]), np.float32([1, np.inf, 0.2])),
    "doubles": Box(-0.1, 0.1, (2, 2), np.float64),
    "columns": MultiDiscrete([[2, 3], [4, 2]], start=[[5, 0], [0, -1]]),
    "bits": MultiBinary(4),
}

OWN = "genkidama.learning.tensors.networks:ActorCritic"

SEEN = Box(-np.inf, np.inf, (5,), np.float32)


class Shaped(gymnasium.Env[Any, Any]):
    """An environment of one of these action spaces, with or without masks."""

    def __init__(self, actions: str, masks: int = 0) -> None:
        self.action_space = SPACES[actions]
        mask = Box(0, 1, (masks,), np.int8)
        self.observation_space = Dict(seen=SEEN, action_mask=mask) if masks else SEEN


class Other(Categorical):
    """It takes the least probable action."""

    def mode(self, outputs: Any) -> Any:
        return outputs.argmin()


class Unusual(A3C):
    head = Other


def policy_of(
    folder: Path, actions: str, masks: int = 0, normalized: bool = False, **network: Any
) -> Policy:
    more = {"options": {"actions": actions, "masks": masks}, "normalize_observations": normalized}
    drawn = {"hidden": (16, 7), "initialization": "normal", "initial_deviation": 0.7, **network}
    experiment = Experiment(
        environment=Environment(id=f"{__name__}:Shaped", **more), network=Network(**drawn)
    )
    checkpoint = untrained(folder, experiment).load()
    policy = Policy(checkpoint, allow=["tests"])
    if (moments := policy.model.moments("observations")) is not None:
        size = policy.model.observation_size
        moments.add(np.random.default_rng(1).normal(3.0, 2.0, (500, size)))
        checkpoint.vector[:] = policy.model.numbers
        policy = Policy(checkpoint, allow=["tests"])
    return policy


def observations(policy: Policy, normalized: bool, masks: int) -> Any:
    rng = np.random.default_rng(2)
    found = rng.normal(3.0 if normalized else 0.0, 2.0, (200, 5 + masks)).astype(np.float32)
    found[0, :5] = 1e4  # beyond what normalized observations are cut to
    if masks:
        valid = rng.random((200, masks)) < 0.5
        found[:, 5:] = valid | ~valid.any(1, keepdims=True)
    return found


#: The rows that begin an episode: these are of many lengths.
STARTS = {0, 1, 4, 30, 31, 90, 150}


def by_numpy(policy: Policy, given: Any) -> Any:
    """Actions (n, numbers) of `Policy.predict`."""
    if not policy.model.memory:
        found, _ = policy.predict(given, deterministic=True)
        return found.reshape(len(given), -1)
    actions, state = [], None
    for number, row in enumerate(given):
        action, state = policy.predict(row, state, number in STARTS, deterministic=True)
        actions.append(np.ravel(action))
    return np.array(actions)


def by_c(policy: Policy, folder: Path, given: Any) -> Any:
    """Actions (n, numbers) of a library that is compiled from the header alone."""
    network = acting_network(policy, "C")
    (folder / "tried.h").write_text(to_c(network, "tried"))
    kind = "int" if network.choices else "float"
    more = ", state" * bool(network.memory) + ", mask" * network.masked
    act = f"*action = tried_act(x{more})" if network.single else f"tried_act(x{more}, action)"
    kept = (
        "static float state[TRIED_MEMORY];"
        "for (int i = 0; begins && i < TRIED_MEMORY; i++) state[i] = 0.0f;"
        if network.memory
        else "(void)begins;"
    )
    declared = "unsigned char mask[TRIED_OUTPUTS];" if network.masked else ""
    filled = (
        "for (int i = 0; i < TRIED_OUTPUTS; i++) mask[i] = x[TRIED_INPUTS + i] > 0.0f;"
        if network.masked
        else ""
    )
    (folder / "tried.c").write_text(
        f'#include "tried.h"\nvoid act(const float *x, int begins, {kind} *action);\n'
        f"void act(const float *x, int begins, {kind} *action)\n"
        f"{{ {declared} {kept} {filled} {act}; }}\n"
    )
    command = ("cc", *STRICT, "-shared", "-fPIC", "tried.c", "-lm", "-o", "tried.so")
    subprocess.run(command, cwd=folder, check=True)
    library, actions = CDLL(str(folder / "tried.so")), []
    for number, row in enumerate(np.ascontiguousarray(given, np.float32)):
        action = np.zeros(network.actions, np.int32 if network.choices else np.float32)
        library.act(row.ctypes, int(number in STARTS), action.ctypes)
        actions.append(action)
    return np.array(actions)


def by_js(policy: Policy, folder: Path, given: Any) -> Any:
    network = acting_network(policy, "JavaScript")
    (folder / "tried.mjs").write_text(to_js(network))
    (folder / "given.json").write_text(json.dumps(given.tolist()))
    (folder / "try.mjs").write_text(
        f"const starts = {sorted(STARTS)};"
        + """
        import { readFileSync } from "node:fs";
        import * as policy from "./tried.mjs";
        const { INPUTS, MEMORY, act } = policy;
        const rows = JSON.parse(readFileSync("given.json"));
        const listed = (action) => (typeof action === "number" ? [action] : [...action]);
        const state = new Float32Array(MEMORY ?? 0);
        const acted = (row, i) => {
          if (starts.includes(i)) state.fill(0);
          const more = MEMORY ? [state] : [];
          return listed(act(row.slice(0, INPUTS), ...more, row.slice(INPUTS)));
        };
        console.log(JSON.stringify(rows.map(acted)));
    """
    )
    done = subprocess.run(["node", "try.mjs"], cwd=folder, capture_output=True, check=True)
    return np.array(json.loads(done.stdout))


CASES: dict[str, dict[str, Any]] = {
    "plain": {"actions": "discrete"},
    "start": {"actions": "from -1", "normalized": True, "activation": "relu"},
    "continuous": {"actions": "box", "normalized": True},
    "of doubles": {"actions": "doubles", "hidden": (9,), "shared": True},
    "columns": {"actions": "columns", "normalized": True, "shared": True},
    "bits": {"actions": "bits", "activation": "elu"},
    "mask": {"actions": "from -1", "masks": 3, "activation": "silu"},
    "masks": {"actions": "columns", "masks": 11, "normalized": True},
    "memory": {"actions": "from -1", "memory": 6, "normalized": True},
    "memory, masks": {"actions": "columns", "masks": 11, "memory": 5, "activation": "elu"},
    "memory, continuous": {"actions": "box", "memory": 9, "hidden": (4,), "normalized": True},
}


@pytest.mark.parametrize("run", [by_c, by_js])
@pytest.mark.parametrize("case", CASES)
def test_it_acts_as_the_policy_does(tmp_path: Path, case: str, run: Any) -> None:
    if shutil.which(program := {by_c: "cc", by_js: "node"}[run]) is None:
        pytest.skip(f"there is no {program}")
    policy = policy_of(tmp_path, **CASES[case])
    given = observations(policy, CASES[case].get("normalized", False), CASES[case].get("masks", 0))
    expected = by_numpy(policy, given)
    assert len(np.unique(expected, axis=0)) > 1
    found = run(policy, tmp_path, given)
    if "box" in CASES[case]["actions"] or "doubles" in CASES[case]["actions"]:
        assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)
    else:
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("case", CASES)
def test_a_header_is_strict_c_and_c_plus_plus_and_stands_beside_another(
    tmp_path: Path, case: str
) -> None:
    if shutil.which("cc") is None or shutil.which("c++") is None:
        pytest.skip("there is no cc, or no c++")
    network = acting_network(policy_of(tmp_path, **CASES[case]), "C")
    for name in ("one", "other"):
        (tmp_path / f"{name}.h").write_text(to_c(network, name))
    (tmp_path / "both.c").write_text('#include "one.h"\n#include "other.h"\n#include "one.h"\n')
    (tmp_path / "again.c").write_text('#include "one.h"\n')
    for compiler in (("cc", *STRICT), ("c++", "-x", "c++", "-std=c++11", *STRICT[1:])):
        linked = ("-Wdouble-promotion", "-shared", "-fPIC", "both.c", "again.c", "-o", "both.so")
        subprocess.run([*compiler, *linked], cwd=tmp_path, check=True)


@pytest.mark.parametrize("run", [by_c, by_js])
def test_a_mask_without_a_valid_choice_counts_as_none(tmp_path: Path, run: Any) -> None:
    if shutil.which(program := {by_c: "cc", by_js: "node"}[run]) is None:
        pytest.skip(f"there is no {program}")
    policy = policy_of(tmp_path, "discrete", masks=3)
    given = observations(policy, False, 3)
    given[:, 5:] = 0.0
    found = run(policy, tmp_path, given)
    given[:, 5:] = 1.0
    expected, _ = policy.predict(given, deterministic=True)
    assert np.array_equal(found[:, 0], expected) and len(set(expected)) == 3


def test_a_module_refuses_an_observation_of_another_length(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("there is no node")
    policy = policy_of(tmp_path, "discrete")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        by_js(policy, tmp_path, np.zeros((1, 4)))
    assert b"RangeError: an observation of 4 numbers: expected 5" in failed.value.stderr
    remembering = policy_of(tmp_path / "other", "discrete", memory=4)
    (tmp_path / "kept.mjs").write_text(to_js(acting_network(remembering, "JavaScript")))
    program = 'import("./kept.mjs").then(({ act }) => act([1, 2, 3, 4, 5], [0, 0, 0]))'
    with pytest.raises(subprocess.CalledProcessError) as failed:
        subprocess.run(["node", "-e", program], cwd=tmp_path, capture_output=True, check=True)
    assert b"RangeError: a state of 3 numbers: expected 4" in failed.value.stderr


@given(st.floats(width=32, allow_nan=False))
def test_a_number_in_c_is_that_of_float32(number: float) -> None:
    text = codegen._c_number(number)
    read = float(text.removesuffix("f").replace("INFINITY", "inf"))
    assert np.float32(read).tobytes() == np.float32(number).tobytes()
    assert text.endswith(("f", "INFINITY")) and ("." in text or "e" in text or "INF" in text)


def test_a_header_says_what_it_takes(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, "from -1", normalized=True, masks=3)
    network = acting_network(policy, "C")
    text = to_c(network, "tried")
    numbers = 2 * 5 + (5 * 16 + 16) + (16 * 7 + 7) + (7 * 3 + 3)
    assert f"{4 * numbers:,} bytes of constants, {4 * (5 + 16 + 7 + 3)} of arrays" in text
    for line in (
        "network      5 -> 16 -> 7 -> 3, tanh",
        "action       one of -1 to 1, the most probable",
        "    int action = tried_act(observation, mask);",
    ):
        assert f" * {line}\n" in text
    remembering = acting_network(policy_of(tmp_path / "other", "box", memory=4), "C")
    text = to_c(remembering, "tried")
    for line in (
        "network      5 -> 16 -> 7 -> GRU of 4 units -> 3, tanh",
        "state        4 numbers: set them to 0 when an episode begins; each call overwrites them",
        "    float state[TRIED_MEMORY] = {0};",
        "    tried_act(observation, state, action);",
    ):
        assert f" * {line}\n" in text
    gru = 3 * 4 * (7 + 4 + 2)
    assert remembering.constants == 4 * (5 * 16 + 16 + 16 * 7 + 7 + gru + 4 * 3 + 3 + 2 * 3)
    assert remembering.stack == 4 * (16 + 7 + 6 * 4)
    assert text.isascii() and to_js(network).isascii()
    assert sum(array.size for array in network.arrays.values()) == numbers


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"network": Network(name=OWN)}, f"network.name = '{OWN}'"),
        ({"algorithm": Algorithm(name=f"{__name__}:Unusual")}, "Unusual': a head of its own"),
    ],
)
def test_others_are_refused_by_name_with_the_way_out(
    tmp_path: Path, settings: Any, named: str
) -> None:
    experiment = Experiment(environment=Environment(id="CartPole-v1"), **settings)
    policy = Policy(untrained(tmp_path, experiment).load(), allow=["*"])
    for write, language in ((policy.to_c, "C"), (policy.to_js, "JavaScript")):
        with pytest.raises(ConfigurationError, match=f"{named}.* in {language}; take ONNX"):
            write(tmp_path / "policy")
    assert not (tmp_path / "policy").exists()


def test_heads_that_act_as_ours_do_are_known(tmp_path: Path) -> None:
    discrete = Discrete(2)
    experiment = Experiment(
        environment=Environment(id="CartPole-v1"),
        algorithm=Algorithm(name="dqn"),
        replay=ReplaySettings(steps=1000),
    )
    greedy = Policy(untrained(tmp_path, experiment).load()).model.head
    plain = (greedy, Categorical(discrete), Gaussian(SPACES["box"]), MultiCategorical(discrete))  # type: ignore[arg-type]
    assert all(map(is_plain, plain))
    assert not is_plain(Other(discrete))
