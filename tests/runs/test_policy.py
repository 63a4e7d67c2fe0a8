"""A policy as scripts use it, beside the way in which evaluations play."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Algorithm, Environment, Network
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.actions import INVALID
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.plugins.gorila.settings import ReplaySettings
from genkidama.runs import checkpoint as checkpoints
from genkidama.runs.evaluation_worker import play, steps_of
from genkidama.runs.policy import Policy, explain
from tests.environments import Doors
from tests.helpers import untrained
from tests.texts import code_block


def policy_of(folder: Path, name: str, dqn: bool = False, **settings: Any) -> Policy:
    dueling, memory = settings.pop("dueling", False), settings.pop("memory", 0)
    experiment = Experiment(
        environment=Environment(id=name, **settings),
        network=Network(
            hidden=(16,), initialization="normal", initial_deviation=0.5, memory=memory
        ),
        algorithm=Algorithm(name="dqn", dueling=dueling) if dqn else Algorithm(name="a3c"),
        replay=ReplaySettings(steps=1000 if dqn else 0),
    )
    return Policy(untrained(folder, experiment).load(), allow=["tests"])


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_it_plays_as_an_evaluation_does(tmp_path: Path, name: str) -> None:
    policy = policy_of(tmp_path, name)
    model = Model(policy.experiment, environment := policy.make_environment())
    model.numbers[:] = torch.cat([p.reshape(-1) for p in policy.module.parameters()]).detach()
    (expected,) = play(model, environment, [0], 3, greedy=True)
    seed = np.random.SeedSequence((3, 0)).generate_state(1)[0]
    observation, _ = environment.reset(seed=int(seed))
    total, over = 0.0, False
    while not over:
        action, state = policy.predict(observation, deterministic=True)
        assert state is None
        observation, reward, terminated, truncated, _ = environment.step(action)
        total += float(reward)
        over = terminated or truncated
    assert total == expected


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_with_a_memory_it_goes_on_from_the_state_that_it_gave(tmp_path: Path, name: str) -> None:
    policy = policy_of(tmp_path, name, memory=7, normalize_observations=True)
    environment = policy.make_environment()
    state = None
    episode = steps_of(policy.model, environment, (3, 0), greedy=True)
    wholes = []
    for _ in range(9):
        row, action, _ = next(episode)
        seen = row[7:].reshape(policy.observation_space.shape)
        for _ in range(2):  # to ask twice changes nothing
            said = policy.explain(seen, state)
        chosen, after = policy.predict(seen, state, deterministic=True)
        assert np.allclose(chosen, action) and after is not None and after.shape == (7,)
        assert said.value == pytest.approx(explain(policy.model, row).value, rel=1e-4, abs=1e-6)
        wholes.append((seen, np.zeros(7) if state is None else state, chosen, after))
        state = after
    assert len({tuple(after.round(5)) for *_, after in wholes}) == 9
    seen, states, chosen, after = (np.array(column) for column in zip(*wholes, strict=True))
    found, together = policy.predict(seen, states, deterministic=True)
    assert np.allclose(found, chosen, atol=1e-5) and np.allclose(together, after, atol=1e-5)
    starts = np.arange(9) % 2 == 0
    _, begun = policy.predict(seen, states, episode_start=starts, deterministic=True)
    _, fresh = policy.predict(seen, deterministic=True)
    assert np.allclose(begun[starts], fresh[starts]) and np.allclose(begun[~starts], after[~starts])
    assert np.allclose(policy.predict(seen[4], states[4], True)[1], fresh[4], atol=1e-6)
    with pytest.raises(ValueError, match=r"a state of shape \(6,\): expected \(7,\) for one"):
        policy.predict(seen[0], np.zeros(6))
    environment.close()


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_many_observations_get_the_actions_of_each(tmp_path: Path, name: str) -> None:
    policy = policy_of(tmp_path, name, normalize_observations=True)
    many = np.random.default_rng(0).normal(size=(7, *policy.observation_space.shape))
    together, _ = policy.predict(many, deterministic=True)
    one_by_one = [policy.predict(one, deterministic=True)[0] for one in many]
    assert np.allclose(together, one_by_one)
    assert all(policy.action_space.contains(action) for action in one_by_one)
    sampled = np.array([policy.predict(many)[0] for _ in range(20)])
    assert sampled.shape == (20, *together.shape)
    assert len(np.unique(sampled, axis=0)) > 1


@pytest.mark.parametrize("place", ["key", "info"])
def test_it_takes_a_mask_as_the_environment_gives_it(tmp_path: Path, place: str) -> None:
    options = {"place": place, "columns": 3}
    where: Any = "info" if place == "info" else "key"
    policy = policy_of(tmp_path, "tests.environments:Doors", options=options, action_mask=where)
    raw, played = Doors(columns=3, place=place), policy.make_environment()
    observation, info = raw.reset(seed=1)
    given: dict[str, Any] = {"action_mask": info["action_mask"]} if place == "info" else {}
    action, _ = policy.predict(observation, deterministic=True, **given)
    assert np.array_equal(action, policy.predict(played.reset(seed=1)[0], deterministic=True)[0])
    joined = played.reset(seed=1)[0]
    assert np.array_equal(action, policy.predict(joined, deterministic=True, **given)[0])
    doors = raw.open
    for _ in range(20):
        taken, _ = policy.predict(observation, **given)
        assert all(doors[column][chosen] for column, chosen in enumerate(taken))
    explanation = policy.explain(played.reset(seed=1)[0])
    assert explanation.kind == "probabilities"
    assert np.array_equal(explanation.actions > 0.0, np.concatenate(doors))
    outputs, _ = policy.module(torch.from_numpy(played.reset(seed=1)[0])[None])
    assert np.array_equal(outputs[0].detach().numpy() > INVALID, np.concatenate(doors))


class Counters(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.MultiDiscrete([3, 4])
    action_space = gymnasium.spaces.Discrete(2)


def test_it_takes_whole_numbers_as_the_environment_gives_them(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, f"{__name__}:Counters")
    alike = ([1, 2], (1, 2), np.array([1, 2]), [0, 1, 0, 0, 0, 1, 0])
    assert len({int(policy.predict(seen, deterministic=True)[0]) for seen in alike}) == 1


class Parted(Counters):
    observation_space = gymnasium.spaces.Tuple(
        [gymnasium.spaces.Box(-1.0, 1.0, (3,)), gymnasium.spaces.Box(-1.0, 1.0, (2,))]
    )


def test_it_takes_parts_of_different_lengths(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, f"{__name__}:Parted")
    parts = np.zeros(3, np.float32), np.ones(2, np.float32)
    apart, _ = policy.predict(parts, deterministic=True)
    assert apart == policy.predict(np.concatenate(parts), deterministic=True)[0]


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, "CartPole-v1")
    for wrong in (np.zeros(3), np.zeros((2, 2, 4)), 1.0):
        with pytest.raises(ValueError, match=r"an observation of shape .*: expected \(4,\)"):
            policy.predict(wrong)
    checkpoint = untrained(tmp_path / "other", Experiment(environment=Environment(id="Acrobot-v1")))
    found = checkpoint.load()
    found.snapshot.experiment["environment"]["id"] = "CartPole-v1"
    with pytest.raises(ConfigurationError, match=r"its network is not the one that its experiment"):
        Policy(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "tests.environments:Doors"])
def test_onnx_runtime_finds_the_same(tmp_path: Path, name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    policy = policy_of(tmp_path, name, normalize_observations=True)
    path = policy.to_onnx(tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(str(path))
    many = np.random.default_rng(0).normal(size=(5, *policy.observation_space.shape))
    many[:, -1] = 1.0  # something is valid, if this is a mask
    (actions,) = session.run(["action"], {"observation": many.astype(np.float32)})
    expected, _ = policy.predict(many, deterministic=True)
    assert np.allclose(actions, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Pendulum-v1", "tests.environments:Doors"])
def test_onnx_runtime_remembers_the_same(tmp_path: Path, name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    policy = policy_of(tmp_path, name, memory=64, normalize_observations=True)
    session = onnxruntime.InferenceSession(str(policy.to_onnx(tmp_path / "policy.onnx")))
    shapes = {each.name: each.shape[1:] for each in (*session.get_inputs(), *session.get_outputs())}
    assert shapes["state"] == shapes["next_state"] == [64]
    assert session.get_inputs()[0].shape[1:] == list(policy.observation_space.shape)
    rng = np.random.default_rng(0)
    state, theirs = None, np.zeros((3, 64), np.float32)
    starts = np.ones(3, np.bool_)
    for _ in range(60):  # three episodes at once, and others behind them
        seen = rng.normal(size=(3, *policy.observation_space.shape)).astype(np.float32)
        seen[:, -1] = 1.0  # something is valid, if this is a mask
        theirs[starts] = 0.0
        given = {"observation": seen, "state": theirs}
        found, theirs = session.run(["action", "next_state"], given)
        expected, state = policy.predict(seen, state, starts, deterministic=True)
        assert np.allclose(found, expected, atol=1e-5) and np.allclose(theirs, state, atol=1e-5)
        theirs = state.copy()  # the last bits of sixty steps would add up
        starts = rng.random(3) < 0.1
    assert state is not None and np.abs(state).min() > 0.0
    names = {"numpy": np, "session": session, "observations": seen[:1]}
    exec(code_block("docs/notes/export.md", "python", "next_state"), names)
    assert np.allclose(names["state"], policy.predict(seen[:1])[1], atol=1e-5)


@pytest.mark.slow
def test_an_onnx_file_that_cannot_be_written_is_said_and_an_older_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    policy = policy_of(tmp_path, "CartPole-v1")
    (tmp_path / "folder.onnx").mkdir()
    for name in ("folder.onnx", "\0.onnx"):
        with pytest.raises(EnvironmentFailure, match="cannot be written"):
            policy.to_onnx(tmp_path / name)
    old = tmp_path / "-old\udcff.onnx"
    old.write_text("old")
    monkeypatch.setattr("numpy.allclose", lambda *_, **__: False)
    with pytest.raises(EnvironmentFailure, match="by ONNX Runtime its outputs differ from NumPy"):
        policy.to_onnx(old)
    assert old.read_text() == "old"
    monkeypatch.undo()
    assert policy.to_onnx(old).stat().st_size > 1000


def test_the_module_is_plain_torch(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, "CartPole-v1")
    outputs, value = policy.module(torch.zeros(3, 4))
    assert (outputs.shape, value.shape) == ((3, 2), (3,))
    checkpoint = checkpoints.load(next(tmp_path.rglob("*.safetensors")))
    first = next(policy.module.parameters()).detach().reshape(-1).numpy()
    assert np.array_equal(first, checkpoint.vector[: first.size])


def test_its_environment_has_the_wrappers(tmp_path: Path) -> None:
    wrapped = (
        {"name": "FrameStackObservation", "options": {"stack_size": 2}},
        {"name": "FlattenObservation"},
    )
    policy = policy_of(tmp_path, "CartPole-v1", wrappers=wrapped)
    environment = policy.make_environment(render_mode="rgb_array")
    assert environment.observation_space.shape == (8,) == policy.observation_space.shape
    assert environment.render_mode == "rgb_array"
    environment.close()
    assert make_environment(policy.experiment.environment).render_mode is None


def known(policy: Policy, observation: Any) -> tuple[Any, float]:
    with torch.no_grad():
        outputs, values = policy.module(torch.as_tensor(observation)[None])
    return outputs.numpy(), float(values)


def test_probabilities_are_those_by_which_it_acts(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, "CartPole-v1")
    observation = np.array([0.1, -0.2, 0.3, 1.0], np.float32)
    said = policy.explain(observation)
    outputs, value = known(policy, observation)
    pi = np.exp(policy.model.log_probability(outputs.repeat(2, 0), np.arange(2)[:, None]))
    assert said.kind == "probabilities" and said.spread is None
    assert said.actions == pytest.approx(pi, rel=1e-5)
    assert said.value == pytest.approx(value)
    acted = [policy.predict(observation)[0] for _ in range(4000)]
    assert np.mean(acted) == pytest.approx(said.actions[1], abs=0.03)


def test_a_continuous_policy_says_means_and_deviations(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, "Pendulum-v1")
    observation = np.array([1.0, 0.0, 0.5], np.float32)
    said = policy.explain(observation)
    acted = np.array([policy.predict(observation)[0] for _ in range(2000)])
    assert said.kind == "means" and said.spread is not None
    low, high = said.actions[0] - said.spread[0], said.actions[0] + said.spread[0]
    assert np.mean((acted > low) & (acted < high)) == pytest.approx(0.68, abs=0.05)


def test_sacs_deviation_is_bounded_as_where_it_acts(tmp_path: Path) -> None:
    sac = Experiment(
        environment=Environment(id="Pendulum-v1"),
        network=Network(hidden=(16,), initialization="normal", initial_deviation=50.0),
        algorithm=Algorithm(name="sac"),
        replay=ReplaySettings(steps=1000),
    )
    model = Policy(untrained(tmp_path, sac).load(), allow=["tests"]).model
    rng = np.random.default_rng(1)
    for observation in rng.uniform(-1.0, 1.0, (20, 3)).astype(np.float32):
        outputs = model.evaluate(observation[None])[0][0]
        slope = 1.0 - np.tanh(outputs[0]) ** 2
        spread = explain(model, observation).spread
        assert spread is not None and spread[0] <= 2.0 * slope * np.exp(2.0) * 1.001


@pytest.mark.parametrize("dueling", [False, True])
def test_dqn_says_q_values(tmp_path: Path, dueling: bool) -> None:
    policy = policy_of(tmp_path, "CartPole-v1", True, dueling=dueling)
    observation = np.array([0.1, -0.2, 0.3, 1.0], np.float32)
    outputs, value = known(policy, observation)
    q = outputs[0]
    if dueling:
        q = q + value - q.mean()
    said = policy.explain(observation)
    assert said.kind == "values"
    assert said.actions == pytest.approx(q)
    assert said.value == pytest.approx(q.max())


def test_values_are_told_in_the_environments_own_rewards(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, "CartPole-v1", reward_scale=0.05, normalize_rewards=True)
    moments = policy.model.moments("returns")
    assert moments is not None
    moments.add(np.array([[-3.0], [3.0]] * 50))
    observation = np.ones(4, np.float32)
    _, value = known(policy, observation)
    assert policy.explain(observation).value == pytest.approx(value / 0.05 * 3.0, rel=1e-5)


def test_observations_are_normalized_as_for_acting(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, "CartPole-v1", normalize_observations=True)
    moments = policy.model.moments("observations")
    assert moments is not None
    moments.add(np.random.default_rng(0).normal(5.0, 2.0, (500, 4)))
    mean, deviation = moments.mean_and_deviation()
    _, value = known(policy, np.ones(4, np.float32))
    assert policy.explain(mean + deviation).value == pytest.approx(value, rel=1e-4)


def test_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"an observation of shape \(3,\): expected \(4,\)"):
        policy_of(tmp_path, "CartPole-v1").explain(np.zeros(3))
