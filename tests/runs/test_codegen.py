"""The code of policies in C and JavaScript, beside `Policy.predict`."""

from __future__ import annotations

import json
import shutil
import subprocess
from ctypes import CDLL
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
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
    "parts": Tuple((Discrete(3, start=5), Discrete(2))),
}

OWN = "genkidama.learning.tensors.networks:ActorCritic"

SEEN = Box(-np.inf, np.inf, (5,), np.float32)


class Shaped(gymnasium.Env[Any, Any]):
    """An environment of one of these action spaces, with or without masks."""

    def __init__(self, actions: str, masks: int = 0) -> None:
        self.action_space = SPACES[actions]
        mask = Box(0, 1, (masks,), np.int8)
        self.observation_space = Dict(seen=SEEN, action_mask=mask) if masks else SEEN


TWO_PARTS = Environment(id=f"{__name__}:Shaped", options={"actions": "parts"})


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


class Tried(NamedTuple):
    """A policy, and what it is shown: (n, numbers), masks behind the observations."""

    policy: Policy
    given: Any


def observations(normalized: bool, masks: int) -> Any:
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


def by_c(tried: dict[str, Tried], folder: Path) -> dict[str, Any]:
    """Actions (n, numbers) of a library that is compiled from the headers alone."""
    networks = {name: acting_network(one.policy, "C") for name, one in tried.items()}
    code = []
    for number, network in enumerate(networks.values()):
        own, macro = f"tried_{number}", f"TRIED_{number}"
        (folder / f"{own}.h").write_text(to_c(network, own))
        kind = "int" if network.choices else "float"
        more = ", state" * bool(network.memory) + ", mask" * network.masked
        act = f"*action = {own}_act(x{more})" if network.single else f"{own}_act(x{more}, action)"
        kept = (
            f"static float state[{macro}_MEMORY];"
            f"for (int i = 0; begins && i < {macro}_MEMORY; i++) state[i] = 0.0f;"
            if network.memory
            else "(void)begins;"
        )
        declared = f"unsigned char mask[{macro}_OUTPUTS];" if network.masked else ""
        filled = (
            f"for (int i = 0; i < {macro}_OUTPUTS; i++) mask[i] = x[{macro}_INPUTS + i] > 0.0f;"
            if network.masked
            else ""
        )
        heading = f"void act_{number}(const float *x, int begins, {kind} *action)"
        body = f"{{ {declared} {kept} {filled} {act}; }}"
        code.append(f'#include "{own}.h"\n{heading};\n{heading}\n{body}\n')
    (folder / "tried.c").write_text("".join(code))
    command = ("cc", *STRICT, "-shared", "-fPIC", "tried.c", "-lm", "-o", "tried.so")
    subprocess.run(command, cwd=folder, check=True)
    library, found = CDLL(str(folder / "tried.so")), {}
    for number, (name, network) in enumerate(networks.items()):
        actions, act_in_c = [], getattr(library, f"act_{number}")
        for place, row in enumerate(np.ascontiguousarray(tried[name].given, np.float32)):
            action = np.zeros(network.actions, np.int32 if network.choices else np.float32)
            act_in_c(row.ctypes, int(place in STARTS), action.ctypes)
            actions.append(action)
        found[name] = np.array(actions)
    return found


def by_js(tried: dict[str, Tried], folder: Path) -> dict[str, Any]:
    """Actions (n, numbers) of a module for each policy, in one program."""
    for number, one in enumerate(tried.values()):
        (folder / f"{number}.mjs").write_text(to_js(acting_network(one.policy, "JavaScript")))
    given = {name: one.given.tolist() for name, one in tried.items()}
    (folder / "given.json").write_text(json.dumps(given))
    (folder / "try.mjs").write_text(
        f"const starts = {sorted(STARTS)};"
        + """
        import { readFileSync } from "node:fs";
        const listed = (action) => (typeof action === "number" ? [action] : [...action]);
        const found = {};
        const given = Object.entries(JSON.parse(readFileSync("given.json")));
        for (const [number, [name, rows]] of given.entries()) {
          const { INPUTS, MEMORY, act } = await import(`./${number}.mjs`);
          const state = new Float32Array(MEMORY ?? 0);
          const acted = (row, i) => {
            if (starts.includes(i)) state.fill(0);
            const more = MEMORY ? [state] : [];
            return listed(act(row.slice(0, INPUTS), ...more, row.slice(INPUTS)));
          };
          found[name] = rows.map(acted);
        }
        console.log(JSON.stringify(found));
    """
    )
    done = subprocess.run(["node", "try.mjs"], cwd=folder, capture_output=True, check=True)
    return {name: np.array(actions) for name, actions in json.loads(done.stdout).items()}


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


#: Besides, one whose masks allow nothing.
NOTHING_VALID = "nothing valid"


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tried]:
    found = {}
    for case, settings in {**CASES, NOTHING_VALID: {"actions": "discrete", "masks": 3}}.items():
        policy = policy_of(tmp_path_factory.mktemp("policy"), **settings)
        given = observations(settings.get("normalized", False), settings.get("masks", 0))
        found[case] = Tried(policy, given)
    found[NOTHING_VALID].given[:, 5:] = 0.0
    return found


@pytest.fixture(scope="module", params=[by_c, by_js])
def acted(
    request: pytest.FixtureRequest,
    tried: dict[str, Tried],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """The actions of each policy's code in one language: one program has them all."""
    if shutil.which(program := {by_c: "cc", by_js: "node"}[request.param]) is None:
        pytest.skip(f"there is no {program}")
    found: dict[str, Any] = request.param(tried, tmp_path_factory.mktemp("code"))
    return found


@pytest.mark.parametrize("case", CASES)
def test_it_acts_as_the_policy_does(
    case: str, tried: dict[str, Tried], acted: dict[str, Any]
) -> None:
    expected = by_numpy(*tried[case])
    assert len(np.unique(expected, axis=0)) > 1
    if "box" in CASES[case]["actions"] or "doubles" in CASES[case]["actions"]:
        assert np.allclose(acted[case], expected, rtol=1e-5, atol=1e-5)
    else:
        assert np.array_equal(acted[case], expected)


def test_a_mask_without_a_valid_choice_counts_as_none(
    tried: dict[str, Tried], acted: dict[str, Any]
) -> None:
    policy, given = tried[NOTHING_VALID]
    given = given.copy()
    given[:, 5:] = 1.0
    expected, _ = policy.predict(given, deterministic=True)
    assert np.array_equal(acted[NOTHING_VALID][:, 0], expected) and len(set(expected)) == 3


def test_headers_are_strict_c_and_c_plus_plus_and_stand_beside_each_other(
    tmp_path: Path, tried: dict[str, Tried]
) -> None:
    """Two of each policy, in one file, and one of them in another file of the same program."""
    if shutil.which("cc") is None or shutil.which("c++") is None:
        pytest.skip("there is no cc, or no c++")
    names = []
    for number, one in enumerate(tried.values()):
        network = acting_network(one.policy, "C")
        for name in (f"one_{number}", f"other_{number}"):
            (tmp_path / f"{name}.h").write_text(to_c(network, name))
            names.append(name)
    for file, included in (("both.c", [*names, *names]), ("again.c", names)):
        (tmp_path / file).write_text("".join(f'#include "{name}.h"\n' for name in included))
    for compiler in (("cc", *STRICT), ("c++", "-x", "c++", "-std=c++11", *STRICT[1:])):
        linked = ("-Wdouble-promotion", "-shared", "-fPIC", "both.c", "again.c", "-o", "both.so")
        subprocess.run([*compiler, *linked], cwd=tmp_path, check=True)


def test_a_module_refuses_an_observation_of_another_length(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("there is no node")
    for name, network in (("plain", {}), ("remembers", {"memory": 4})):
        policy = policy_of(tmp_path / name, "discrete", **network)
        (tmp_path / f"{name}.mjs").write_text(to_js(acting_network(policy, "JavaScript")))
    program = """
        const tried = { plain: [[1, 2, 3, 4]], remembers: [[1, 2, 3, 4, 5], [0, 0, 0]] };
        (async () => {
          for (const [name, given] of Object.entries(tried)) {
            const { act } = await import(`./${name}.mjs`);
            try { act(...given); } catch (error) { console.log(String(error)); }
          }
        })();
    """
    done = subprocess.run(["node", "-e", program], cwd=tmp_path, capture_output=True, check=True)
    one, other = done.stdout.decode().splitlines()
    assert one.startswith("RangeError: an observation of 4 numbers: expected 5")
    assert other.startswith("RangeError: a state of 3 numbers: expected 4")


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
        ({"environment": TWO_PARTS}, "Shaped': a Tuple or Dict of actions"),
    ],
)
def test_others_are_refused_by_name_with_the_way_out(
    tmp_path: Path, settings: Any, named: str
) -> None:
    experiment = Experiment(**{"environment": Environment(id="CartPole-v1"), **settings})
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
