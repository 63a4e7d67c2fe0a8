from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.dependent_defaults import applicable_settings, brought
from genkidama.config.examples import example, examples
from genkidama.config.experiment import Experiment
from genkidama.config.sections import (
    Algorithm,
    ChildOverride,
    ChildSettings,
    Environment,
    Network,
    ParentSettings,
    Stop,
    flat,
)
from genkidama.errors import ConfigurationError, EnvironmentFailure

SECTIONS = (
    "algorithm, child, children, environment, ga3c, learner, name, network, optimizer, parent, "
    "plugins, replay, search, seed, solved, stop"
)

fractions = st.floats(0.0, 1.0)
positive = st.floats(0.0, 1e30, exclude_min=True)
not_negative = st.floats(0.0, 1e30)
finite = st.floats(-1e30, 1e30)
naturals = st.integers(1, 10**6)
plain = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
)
options = st.dictionaries(
    st.text(max_size=8),
    plain | st.lists(plain, max_size=3) | st.dictionaries(st.text(max_size=4), plain, max_size=2),
    max_size=2,
)

#: Every setting, with values that are allowed whatever the others are.
CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]*", fullmatch=True),
    "seed": st.integers(0, 2**31 - 1),
    "solved": finite,
    "children": st.sampled_from([[], [{"name": "pi-*", "settings": {"child.hang_seconds": 5}}]]),
    "environment.id": st.sampled_from(["A", "a_b/C-v1", "mine:Mine", "mine:a/B-v0", "größe:Ü"]),
    "environment.options": options,
    "environment.wrappers": st.lists(
        st.fixed_dictionaries(
            {"name": st.sampled_from(["FrameStackObservation", "mine:Wrapper"]), "options": options}
        ),
        max_size=2,
    ),
    "environment.vectorized": st.just(False),
    "environment.exclusive": st.just(False),
    "environment.period": st.just(0.0),
    "environment.safe_action": st.just([]),
    "environment.safe_seconds": st.just(0.0),
    "environment.offline_seconds": st.just(0.0),
    "environment.action_mask": st.sampled_from(["key", "info"]),
    "environment.normalize_observations": st.booleans(),
    "environment.normalize_rewards": st.booleans(),
    "environment.reward_scale": positive,
    "environment.clip_rewards": not_negative,
    "network.name": st.sampled_from(["actor-critic", "convolutional", "mine:Net", "a.b_c:_D1"]),
    "network.convolutions": st.lists(
        st.lists(naturals, min_size=3, max_size=3), min_size=1, max_size=3
    ),
    "network.channels": st.sampled_from(["first", "last"]),
    "network.hidden": st.lists(naturals, min_size=1, max_size=3),
    "network.activation": st.sampled_from(["tanh", "relu", "elu", "silu"]),
    "network.shared": st.booleans(),
    "network.initialization": st.sampled_from(["orthogonal", "normal", "uniform"]),
    "network.initial_deviation": positive,
    "network.options": options,
    "algorithm.name": st.sampled_from(["a3c", "ppo", "mine:Algorithm"]),
    "algorithm.gamma": fractions,
    "algorithm.gae_lambda": fractions,
    "algorithm.batch_size": st.integers(64, 10**6),
    "algorithm.across_episodes": st.booleans(),
    "algorithm.pull_steps": st.integers(0, 10**6),
    "algorithm.epsilon": fractions,
    "algorithm.epsilon_schedule": st.sampled_from(["constant", "linear"]),
    "algorithm.final_epsilon": fractions,
    "algorithm.epsilon_fraction": st.floats(0.01, 1.0),
    "algorithm.epsilon_versions": st.just(0),
    "algorithm.epsilon_spread": st.just(0.0),
    "algorithm.value_coefficient": not_negative,
    "algorithm.entropy_coefficient": not_negative,
    "algorithm.entropy_schedule": st.sampled_from(["constant", "linear"]),
    "algorithm.final_entropy_coefficient": not_negative,
    "algorithm.entropy_fraction": st.floats(0.01, 1.0),
    "algorithm.reduction": st.sampled_from(["mean", "sum"]),
    "algorithm.normalize_advantages": st.booleans(),
    "algorithm.max_gradient_norm": not_negative,
    "algorithm.outlier_sigmas": not_negative,
    "algorithm.vtrace": st.just(False),
    "algorithm.vtrace_rho": positive,
    "algorithm.vtrace_c": positive,
    "algorithm.options": options,
    "environment.lanes": st.just(1),
    "replay.steps": st.just(0),
    "replay.priority_exponent": st.just(0.0),
    "replay.correction": fractions,
    "replay.url": st.just("local"),
    "replay.name": st.text("aZ9._-", max_size=8).map(lambda text: f"n{text}"),
    "replay.port": st.integers(0, 65535),
    "network.sde_steps": st.just(0),
    "network.memory": st.just(0),
    "network.sequence_length": naturals,
    "network.log_deviation": st.floats(-20.0, 20.0) | st.just("auto"),
    "optimizer.name": st.sampled_from(["sgd", "rmsprop", "adagrad", "adam"]),
    "optimizer.learning_rate": positive,
    "optimizer.schedule": st.sampled_from(["constant", "linear"]),
    "optimizer.final_learning_rate": not_negative,
    "optimizer.schedule_fraction": st.floats(0.01, 1.0),
    "optimizer.momentum": st.floats(0.0, 1.0, exclude_max=True),
    "optimizer.weight_decay": not_negative,
    "optimizer.decay": st.floats(0.0, 1.0, exclude_max=True),
    "optimizer.betas": st.lists(st.floats(0.0, 1.0, exclude_max=True), min_size=2, max_size=2),
    "optimizer.epsilon": positive,
    "optimizer.epsilon_inside": st.booleans(),
    "optimizer.shared": st.booleans(),
    "parent.alpha": fractions,
    "parent.rule": st.just("my.package:Rule"),
    "parent.rule_options": st.just({}),  # what a rule takes: tests/server/rules/test_registry.py
    "parent.average": fractions,
    "parent.encoding": st.sampled_from(["float32", "float16", "int8", "int4"]),
    "parent.push_limit": not_negative,
    "parent.push_window": st.integers(0, 10**6),
    "parent.push_trim": st.floats(0.0, 0.5),
    "parent.quarantine_after": st.integers(0, 10**6),
    "parent.quarantine_seconds": not_negative,
    "parent.signature": st.text("0123456789abcdef", min_size=64, max_size=64),
    "parent.listen": st.text(min_size=1, max_size=20),
    "parent.open": st.booleans(),
    "parent.start": st.text(max_size=20),
    "parent.checkpoint_updates": st.integers(0, 10**6),
    "parent.checkpoint_seconds": positive,
    "parent.checkpoint_keep": naturals,
    "parent.history_every": naturals,
    "parent.silence_seconds": positive,
    "parent.max_children": naturals,
    "parent.browsers": st.just(False),  # others need a rule that takes experience
    "parent.max_per_address": naturals,
    "parent.max_pushes_per_second": positive,
    "parent.max_bytes_per_second": positive,
    "parent.linger_seconds": positive,
    "parent.max_parameters": naturals,
    "parent.tokens_file": st.text(max_size=20),
    "parent.certificate_file": st.text(max_size=20),
    "parent.key_file": st.text(max_size=20),
    "child.beta": fractions,
    "child.roles": st.just(["bundle"]),
    "child.push": st.sampled_from(["auto", "weights"]),
    "child.backend": st.sampled_from(["hogwild", "ga3c", "mine:Backend"]),
    "child.exchange": st.sampled_from(["episode", "free"]),
    "child.adapt": st.just("auto") | st.just(["lanes", "alpha"]),
    "child.exchange_seconds": positive,
    "child.exchange_steps": st.integers(0, 10**6),
    "child.hang_seconds": not_negative,
    "child.cores": naturals | st.just("auto"),
    "ga3c.device": st.sampled_from(["auto", "cpu", "cuda", "cuda:1"]),
    "learner.device": st.sampled_from(["auto", "cpu", "cuda", "cuda:1"]),
    "ga3c.agents": st.integers(1, 64) | st.just("auto"),
    "ga3c.environments": st.integers(1, 1024),
    "ga3c.predictors": st.integers(1, 4),
    "ga3c.trainers": st.integers(1, 4),
    "ga3c.prediction_batch": naturals,
    "ga3c.training_batch": st.integers(0, 10**6),
    "ga3c.rollouts": st.integers(2, 10**6),
    "ga3c.dynamic": st.booleans(),
    "ga3c.window_seconds": positive,
    "ga3c.max_predictors": st.integers(4, 10**6),
    "ga3c.max_trainers": st.integers(4, 10**6),
    "ga3c.max_agents": st.integers(64, 10**6),
    "stop.updates": naturals,
    "stop.episodes": naturals,
    "stop.steps": naturals,
    "stop.seconds": positive,
    "stop.mean_return": finite,
    "stop.window": naturals,
}
PPO_ONLY = {
    "algorithm.epochs": naturals,
    "algorithm.minibatch_size": st.integers(1, 64),
    "algorithm.clip": positive,
}
DQN_ONLY = {
    "algorithm.start_steps": st.integers(0, 10**6),
    "algorithm.batch_updates": naturals,
    "algorithm.n_steps": naturals,
    "algorithm.double": st.booleans(),
    "algorithm.dueling": st.booleans(),
    "algorithm.huber": not_negative,
    "algorithm.target_updates": st.integers(0, 10**6),
    "algorithm.target_versions": st.integers(0, 10**6),
}
SAC_ONLY = {
    "algorithm.updates_per_step": positive | st.just("auto"),
    "algorithm.target_rate": st.floats(0.001, 1.0),
    "algorithm.layer_norm": st.booleans(),
    "algorithm.critic_dropout": st.floats(0.0, 0.99),
    "algorithm.initial_value": st.floats(-1e9, 1e9),
    "algorithm.target_entropy": finite | st.just("auto"),
    "algorithm.demonstrations": st.just([]),
    "algorithm.demonstration_share": fractions,
}

changes = st.fixed_dictionaries({}, optional=CHANGES)


def wrong(settings: dict[str, Any]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Experiment.from_dict(settings, source="lander.toml")
    assert caught.value.exit_code == 2
    return str(caught.value)


def value_of(experiment: Experiment, key: str) -> Any:
    value: Any = experiment
    for part in key.split("."):
        value = getattr(value, part)
    return as_given(value)


def as_given(value: Any) -> Any:
    """A setting as TOML has it: lists and tables."""
    if isinstance(value, tuple):
        return [as_given(part) for part in value]
    return msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value


def test_every_setting_is_tried_here() -> None:
    found = set()
    for field in msgspec.structs.fields(Experiment):
        section = isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
        found |= (
            {f"{field.name}.{inner.name}" for inner in msgspec.structs.fields(field.type)}
            if section
            else {field.name}
        )
    assert found == {
        *CHANGES,
        *PPO_ONLY,
        *DQN_ONLY,
        *SAC_ONLY,
        "algorithm.burn_in",  # of vtrace with a memory
        "plugins",
        "search",
    }  # whose settings tests/plugins/hypertrick/test_settings.py tries


# What is right.


def test_an_empty_file_is_an_experiment() -> None:
    assert Experiment.from_dict({}) == Experiment()


def test_a_whole_table_may_be_given_in_place_of_its_keys() -> None:
    assert Experiment().with_settings({"child": {"beta": 0.25}}).child.beta == 0.25
    for name, value in (("algorithm", 3), ("parent", [1])):
        with pytest.raises(ConfigurationError, match=rf"{name} = .*: expected a table"):
            Experiment().with_settings({"child.exchange": "chunk", name: value})


def test_what_chunks_do_not_set_follows_the_number_of_children() -> None:
    plain = Experiment.from_dict({"child": {"exchange": "chunk"}})
    known = (plain.environment.lanes, plain.algorithm.batch_size, plain.algorithm.epochs)
    assert (*known, plain.child.beta) == (8, 1024, 1, 1.0)
    assert plain.adapts == ("alpha", "lanes", "minibatch_size", "learning_rate")
    assert Experiment.from_dict(plain.to_dict()) == plain
    assert Experiment().with_settings({"child.exchange": "chunk"}) == plain
    assert Experiment().adapts == ()
    given = {"parent.alpha": 0.5, "environment.lanes": 4}
    some = plain.with_settings(given)
    assert some.adapts == ("minibatch_size", "learning_rate")
    both = Experiment().with_settings({**given, "child.exchange": "chunk"})
    assert (both.adapts, both.algorithm.batch_size) == (some.adapts, 512)
    assert plain.with_settings({**given, "child.adapt": ["alpha"]}).adapts == ("alpha",)
    for name in ("a3c", "dqn", "vtrace", "sac"):
        found = Experiment.from_dict({**CHUNK, **KEPT, "algorithm": {"name": name}})
        assert found.adapts == ("alpha", "lanes", "learning_rate")
        assert found.algorithm.vtrace == (name == "a3c")
    made = Experiment(child=ChildSettings(exchange="chunk"), parent=ParentSettings(alpha=0.7))
    assert made.adapts == ("lanes", "minibatch_size", "learning_rate")
    assert Experiment.from_dict(made.to_dict()).adapts == made.adapts
    named = {"child": {"exchange": "chunk", "adapt": ["lanes"]}, "parent": {"alpha": 0.5}}
    assert Experiment.from_dict(named).adapts == ("lanes",)
    learns = Experiment.from_dict(CHUNK).with_settings({"algorithm.name": "a3c"})
    assert learns.algorithm.vtrace
    for change in ({"algorithm.name": "ppo"}, {"child.exchange": "free"}):
        assert not learns.with_settings(change).algorithm.vtrace
    explores = {"name": "a3c", "epsilon": 0.1, "batch_size": 96}
    some = Experiment.from_dict(
        {**CHUNK, "algorithm": explores, "optimizer": {"learning_rate": 1e-3}}
    )
    assert (some.algorithm.vtrace, some.adapts) == (False, ("alpha", "lanes"))
    assert (some.algorithm.batch_size, some.algorithm.normalize_advantages) == (96, True)


def test_sac_has_defaults_of_its_own() -> None:
    found = Experiment.from_dict({"algorithm": {"name": "sac"}})
    assert found.network == Network(activation="relu", initialization="uniform")
    assert found.algorithm == Algorithm(
        name="sac", batch_size=8, minibatch_size=256, start_steps=500
    )
    assert (found.optimizer.learning_rate, found.replay.steps) == (7e-4, 100_000)
    given = {"algorithm": {"name": "sac", "start_steps": 9}, "replay": {"steps": 700}}
    some = Experiment.from_dict(given)
    assert (some.algorithm.start_steps, some.replay.steps) == (9, 700)


def test_a_file_by_values(tmp_path: Path) -> None:
    path = tmp_path / "lander.toml"
    path.write_text(
        """
        seed = 3
        [environment]
        id = "LunarLander-v3"
        options = { gravity = -9.0 }
        [network]
        hidden = [64, 64]
        [algorithm]
        name = "a3c"
        gamma = 1
        [parent]
        alpha = 0.9
        [child]
        beta = 0
        cores = 4
        [stop]
        updates = 2000
        """
    )
    assert Experiment.load(path) == Experiment(
        name="lander",
        seed=3,
        environment=Environment(id="LunarLander-v3", options={"gravity": -9.0}),
        network=Network(hidden=(64, 64)),
        algorithm=Algorithm(name="a3c", gamma=1.0),
        parent=ParentSettings(alpha=0.9),
        child=ChildSettings(beta=0.0, cores=4),
        stop=Stop(updates=2000),
    )


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("thesis.toml", "thesis"),
        ("my run!.toml", "my-run-"),
        ("_try.toml", "try"),
        ("§.toml", "experiment"),
        ("v1.2", "v1"),
    ],
)
def test_the_name_is_the_files_unless_it_says_one(tmp_path: Path, file: str, name: str) -> None:
    (tmp_path / file).write_text("")
    assert Experiment.load(tmp_path / file).name == name
    (tmp_path / file).write_text("name = 'other'")
    assert Experiment.load(str(tmp_path / file)).name == "other"


@given(changes)
def test_every_allowed_value_arrives_and_survives_a_dictionary_a_toml_file_and_the_wire(
    chosen: dict[str, Any],
) -> None:
    original = Experiment()
    experiment = original.with_settings(chosen)
    assert {key: value_of(experiment, key) for key in chosen} == chosen
    assert {key: value_of(experiment, key) for key in CHANGES if key not in chosen} == {
        key: value_of(original, key) for key in CHANGES if key not in chosen
    }
    assert original == Experiment()
    settings = experiment.to_dict()
    assert Experiment.from_dict(settings) == experiment
    assert Experiment.from_dict(tomllib.loads(experiment.to_toml())) == experiment
    wire = msgspec.msgpack.encode(settings)
    assert Experiment.from_dict(msgspec.msgpack.decode(wire)) == experiment


@given(st.fixed_dictionaries({}, optional=PPO_ONLY), st.sampled_from(["ppo", "mine:Algorithm"]))
def test_ppos_own_settings_survive_too(chosen: dict[str, Any], name: str) -> None:
    experiment = Experiment().with_settings({"algorithm.name": name, **chosen})
    assert {key: value_of(experiment, key) for key in chosen} == chosen
    assert Experiment.from_dict(tomllib.loads(experiment.to_toml())) == experiment


@given(st.fixed_dictionaries({}, optional=DQN_ONLY | SAC_ONLY))
def test_so_do_those_of_learners_that_sample(chosen: dict[str, Any]) -> None:
    experiment = Experiment().with_settings({"algorithm.name": "mine:Algorithm", **chosen})
    assert Experiment.from_dict(experiment.to_dict()) == experiment
    for key, value in chosen.items():
        assert value_of(experiment, key) == value


def test_settings_that_are_absent_are_left_out() -> None:
    settings = Experiment(algorithm=Algorithm(name="a3c")).to_dict()
    assert "solved" not in settings
    assert settings["stop"] == {"window": 100}
    assert not {"epochs", "minibatch_size", "clip"} & set(settings["algorithm"])


def test_the_algorithm_can_be_changed_to_and_fro() -> None:
    tuned = Experiment(algorithm=Algorithm(clip=0.3, gamma=0.9))
    a3c = tuned.with_settings({"algorithm.name": "a3c"})
    assert a3c.algorithm == Algorithm(name="a3c", gamma=0.9)
    assert a3c.with_settings(
        {"algorithm.name": "ppo", "algorithm.clip": 0.1}
    ).algorithm == Algorithm(clip=0.1, gamma=0.9)


def test_a_single_option_of_a_plug_can_be_set() -> None:
    experiment = Experiment(environment=Environment(options={"wind": {"power": 1.0}}))
    windy = experiment.with_settings(
        {"environment.options.wind.power": 2.0, "environment.options.gravity": -5}
    )
    assert windy.environment.options == {"wind": {"power": 2.0}, "gravity": -5}
    assert experiment.environment.options == {"wind": {"power": 1.0}}


SEARCH = {"search": {"phase_steps": 1000, "space": {"algorithm": {"gamma": [0.9, 0.99]}}}}
ALONE = "every child learns by itself, and "
BLENDED = "every child learns, and the parent blends their weights: hardly faster than one"


@pytest.mark.parametrize(
    ("settings", "pushes", "alpha", "beta", "cooperation"),
    [
        ({"parent": {"alpha": 0.7}}, "weights", 0.7, 0.5, BLENDED),
        ({"parent": {"rule": "mine:Rule"}}, "weights", 0.5, 0.5, BLENDED),
        ({"parent": {"rule": "difference"}}, "difference", 0.5, None, BLENDED),
        (
            {"parent": {"rule": "mine:Rule"}, "child": {"push": "difference"}},
            "difference",
            0.5,
            None,
            BLENDED,
        ),
        (
            {"child": {"exchange": "chunk"}},
            "weights",
            0.5,
            1.0,
            f"{ALONE}their weights are averaged in chunks",
        ),
        (
            {"parent": {"rule": "gradient"}, "child": {"exchange": "update"}},
            "gradient",
            None,
            None,
            f"{ALONE}sends the parent what it has learned",
        ),
        (
            {"parent": {"rule": "experience"}},
            "experience",
            None,
            None,
            "children act, and one learner beside the parent learns from all",
        ),
        (SEARCH, "weights", 0.5, 0.5, "each child trains trials of its own"),
    ],
)
def test_the_rule_says_how_children_cooperate(
    settings: dict[str, Any], pushes: str, alpha: float | None, beta: float | None, cooperation: str
) -> None:
    experiment = Experiment.from_dict(settings)
    assert (experiment.pushes, experiment.alpha, experiment.beta) == (pushes, alpha, beta)
    assert experiment.cooperation == cooperation
    assert experiment.searches == ("search" in settings)


@pytest.mark.parametrize(
    ("roles", "role"),
    [(["bundle"], "bundle"), (["act"], "act"), (["learn"], "learn"), (["act", "learn"], "bundle")],
)
def test_a_child_has_the_one_role_that_its_parent_has_sent(roles: list[str], role: str) -> None:
    shared = {"replay": {"steps": 5000, "url": "embedded"}, "child": {"roles": roles}}
    assert Experiment.from_dict({"algorithm": {"name": "dqn"}, **shared}).role == role


@pytest.mark.parametrize(
    ("settings", "steps", "shared"),
    [
        ({}, 0, False),
        ({"replay": {"steps": 5000}}, 5000, False),
        ({"replay": {"steps": 5000, "url": "embedded"}}, 5000, True),
        ({"replay": {"steps": 5000, "url": "redis://host:1"}}, 5000, True),
        ({"algorithm": {"name": "sac"}}, 100_000, False),
        ({"algorithm": {"name": "sac"}, "parent": {"rule": "experience"}}, 0, False),
    ],
)
def test_a_replay_is_of_a_core_or_of_all_children(
    settings: dict[str, Any], steps: int, shared: bool
) -> None:
    experiment = Experiment.from_dict(settings)
    assert (experiment.replay_steps, experiment.shares_replay) == (steps, shared)


def test_a_page_shows_the_settings_of_learning_that_are_not_the_defaults() -> None:
    assert Experiment().changed() == {}
    settings = {
        "name": "mine",
        "environment": {"id": "CartPole-v1", "lanes": 4, "options": {"wind": 1}},
        "network": {"hidden": [64, 64]},
        "algorithm": {"gamma": 0.9, "batch_size": 240, "clip": 0.3},
        "parent": {"alpha": 0.7, "tokens_file": "secret"},
        "child": {"beta": 0.7, "cores": 2},
        "stop": {"steps": 500},
    }
    assert Experiment.from_dict(settings).changed() == {
        "environment.lanes": 4,
        "environment.options": {"wind": 1},
        "network.hidden": (64, 64),
        "algorithm.gamma": 0.9,
        "algorithm.batch_size": 240,
        "algorithm.clip": 0.3,
        "child.cores": 2,
        "stop.steps": 500,
    }
    same = {"algorithm": {"name": "a3c", "gamma": 0.99}, "network": {"hidden": [128]}}
    assert Experiment.from_dict(same).changed() == {}
    # What an algorithm brings along is no change of it.
    sampling = {"algorithm": {"name": "dqn"}, "replay": {"steps": 7000}}
    assert Experiment.from_dict(sampling).changed() == {"replay.steps": 7000}


def test_an_environment_may_be_given_by_its_id_alone() -> None:
    known = Experiment(environment=Environment(id="CartPole-v1"))
    assert Experiment(environment="CartPole-v1") == known  # type: ignore[arg-type]
    Experiment.expect(known)
    with pytest.raises(ConfigurationError) as caught:
        Experiment.expect("lunarlander")
    assert str(caught.value) == (
        "experiment = 'lunarlander': expected a genkidama.Experiment, as "
        "Experiment(environment='CartPole-v1') or Experiment.load('lunarlander')"
    )


@pytest.mark.parametrize(
    ("rule", "pushes", "pull"),
    [
        ("blend", "weights", 0.25),
        ("difference", "difference", 1.0),
        ("gradient", "gradient", 1.0),
        ("experience", "experience", 1.0),
    ],
)
def test_a_child_moves_by_beta_only_if_it_pushes_weights(
    rule: str, pushes: str, pull: float
) -> None:
    exchange = "update" if rule == "gradient" else "episode"
    experiment = Experiment().with_settings(
        {"parent.rule": rule, "child.exchange": exchange, "child.beta": 0.25}
    )
    assert (experiment.pushes, experiment.pull) == (pushes, pull)
    assert experiment.sends_experience == (pushes == "experience")


def test_an_experiment_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Experiment().seed = 1  # type: ignore[misc]


# What is wrong, and the one line that says so.

PLUG = "or an import string 'module:Name'"
KEPT = {"replay": {"steps": 5000}}
CORES = {"child": {"cores": 2}}
VECTORIZED = "is vectorized: take that out"
CHUNK = {"child": {"exchange": "chunk"}}
NAME = "expected letters, digits, '.', '_' and '-', a letter or digit first"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        # keys
        (
            {"algorithm": {"learning_rate": 1}},
            "algorithm.learning_rate = 1: no such setting; did you mean 'optimizer.learning_rate'?",
        ),
        (
            {"epsilon": 1},
            "epsilon = 1: no such setting; did you mean 'algorithm.epsilon' or "
            "'optimizer.epsilon'?",
        ),
        (
            {"algorithm": {"lr": 1}},
            "algorithm.lr = 1: no such setting; did you mean 'optimizer.learning_rate'?",
        ),
        # types
        ({"seed": "3"}, "seed = '3': expected int, got str"),
        ({"seed": "1\n2"}, "seed = '1\\n2': expected int, got str"),
        (
            {"algorithm": {"batch_size": 64.0}},
            "algorithm.batch_size = 64.0: expected int, got float",
        ),
        (
            {"algorithm": {"batch_size": True}},
            "algorithm.batch_size = True: expected int, got bool",
        ),
        ({"algorithm": {"gamma": "high"}}, "algorithm.gamma = 'high': expected float, got str"),
        ({"network": {"shared": 1}}, "network.shared = 1: expected bool, got int"),
        ({"network": {"hidden": 64}}, "network.hidden = 64: expected array, got int"),
        (
            {"network": {"hidden": [64, "wide"]}},
            "network.hidden[1] = 'wide': expected int, got str",
        ),
        ({"environment": {"id": 5}}, "environment.id = 5: expected str, got int"),
        ({"environment": {"options": 3}}, "environment.options = 3: expected a table, got int"),
        (
            {"environment": "LunarLander-v3"},
            "environment = 'LunarLander-v3': expected a table, got str",
        ),
        ({"stop": {"updates": "many"}}, "stop.updates = 'many': expected int, got str"),
        ({"solved": [200]}, "solved = [200]: expected float, got array"),
        *(
            ({**kind, key: 3}, f"{key} = 3: expected a table, got int")
            for kind, key in (
                (CHUNK, "environment"),
                (CHUNK, "algorithm"),
                (CHUNK, "optimizer"),
                (CHUNK, "parent"),
                ({"algorithm": {"name": "sac"}}, "network"),
                ({"algorithm": {"name": "sac"}}, "replay"),
            )
        ),
        (
            {"environment": {"lanes": "many"}, **CHUNK},
            "environment.lanes = 'many': expected int, got str",
        ),
        (
            {"algorithm": {"name": ["ppo"]}, **CHUNK},
            "algorithm.name = ['ppo']: expected str, got array",
        ),
        (
            {"child": {"exchange": "chunk", "adapt": "no"}},
            "child.adapt = 'no': expected one of 'auto'",
        ),
        # ranges
        ({"seed": -1}, "seed = -1: expected int >= 0"),
        ({"seed": 2**31}, "seed = 2147483648: expected int <= 2147483647"),
        ({"parent": {"alpha": 1.5}}, "parent.alpha = 1.5: expected float <= 1.0"),
        ({"parent": {"alpha": -0.1}}, "parent.alpha = -0.1: expected float >= 0.0"),
        ({"optimizer": {"learning_rate": 0}}, "optimizer.learning_rate = 0: expected float > 0.0"),
        ({"optimizer": {"momentum": 1.0}}, "optimizer.momentum = 1.0: expected float < 1.0"),
        ({"optimizer": {"betas": [0.9, 1.0]}}, "optimizer.betas[1] = 1.0: expected float < 1.0"),
        (
            {"optimizer": {"betas": [0.9]}},
            "optimizer.betas = [0.9]: expected array of length 2, got 1",
        ),
        ({"network": {"hidden": []}}, "network.hidden = []: expected array of length >= 1"),
        ({"network": {"hidden": [64, 0]}}, "network.hidden[1] = 0: expected int >= 1"),
        (
            {"environment": {"id": ""}},
            "environment.id = '': expected an id of Gymnasium's or EnvPool's, or 'module:Name'",
        ),
        ({"stop": {"updates": 0}}, "stop.updates = 0: expected int >= 1"),
        (
            {"stop": {"mean_return": float("nan")}},
            "stop.mean_return = nan: expected float >= -1e+30",
        ),
        # words
        (
            {"child": {"exchange": "never"}},
            "child.exchange = 'never': expected one of 'episode', 'update', 'free', 'chunk'",
        ),
        (
            {"network": {"activation": "gelu"}},
            "network.activation = 'gelu': expected one of 'tanh', 'relu', 'elu', 'silu'",
        ),
        (
            {"parent": {"rule": "mine:Rule"}, "child": {"backend": "none"}},
            f"child.backend = 'none': expected one of 'hogwild', 'ga3c', {PLUG}",
        ),
        ({"child": {"cores": "all"}}, "child.cores = 'all': expected one of 'auto', or int >= 1"),
        (
            {"algorithm": {"name": "a2c"}},
            f"algorithm.name = 'a2c': expected one of 'a3c', 'ppo', 'dqn', 'vtrace', 'sac', {PLUG}",
        ),
        (
            {"network": {"name": "my/net:Net"}},
            f"network.name = 'my/net:Net': expected one of 'actor-critic', 'convolutional', {PLUG}",
        ),
        ({"name": "../up"}, f"name = '../up': {NAME}"),
        ({"name": ""}, f"name = '': {NAME}"),
        # combinations
        (
            {"algorithm": {"name": "a3c", "clip": 0.2}},
            "algorithm.clip = 0.2: only algorithm.name = 'ppo' has this setting",
        ),
        (
            {"replay": {"steps": 119}},
            "replay.steps = 119: at least algorithm.batch_size = 120 is needed; "
            "0 keeps the newest batch alone",
        ),
        (
            {"replay": {"steps": 120}, "child": {"backend": "ga3c"}},
            "replay.steps = 120: the backend ga3c has no replay tensor; "
            "set it to 0, or child.backend to 'hogwild'",
        ),
        *(
            (
                {**settings, "environment": {"exclusive": True, **settings.get("environment", {})}},
                f"environment.exclusive = True: one core plays one environment, but {cause}",
            )
            for settings, cause in (
                ({"environment": {"lanes": 2}}, "environment.lanes = 2: set it to 1"),
                ({"environment": {"vectorized": True}}, f"the environment {VECTORIZED}"),
                ({"environment": {"id": "envpool:Pong-v5"}}, f"the environment {VECTORIZED}"),
                (
                    {"child": {"backend": "ga3c"}},
                    "child.backend = 'ga3c' has several agents: set it to 'hogwild'",
                ),
                ({"child": {"cores": 2}}, "child.cores = 2: set it to 1"),
            )
        ),
        (
            {"environment": {"period": 0.02, "lanes": 2}, "child": {"cores": 1}},
            "environment.period = 0.02: each core has one environment with a clock, but "
            "environment.lanes = 2: set it to 1",
        ),
        (
            {"environment": {"period": 0.02}},
            "environment.period = 0.02: each core has one environment with a clock, but "
            "child.cores = 'auto': set it to 1, or to how many there are at each child",
        ),
        *(
            (
                {"environment": {"period": 0.02, "safe_action": [0], "safe_seconds": age}, **CORES},
                f"environment.safe_seconds = {age}: an observation is environment.period = 0.02 "
                "old when the next action is due; set it to twice that, for instance",
            )
            for age in (0.01, 0.02)
        ),
        *(
            (
                {"environment": {"period": 0.02, key: 0.5}, **CORES},
                "environment.safe_seconds, environment.offline_seconds: say when "
                "environment.safe_action is taken, which is not there; set it",
            )
            for key in ("safe_seconds", "offline_seconds")
        ),
        (
            {"environment": {"period": 0.02, "safe_action": [0], "offline_seconds": 9}, **CORES},
            "environment.offline_seconds = 9.0: is for children that only act; one that learns "
            "itself goes on without its parent, and would learn from its safe actions; leave it "
            "out, or set parent.rule = 'experience'",
        ),
        (
            {"environment": {"period": 0.02, "safe_action": [0]}, **CORES},
            "environment.safe_action: is never taken; set environment.safe_seconds or, where "
            "children only act, environment.offline_seconds, or leave it out",
        ),
        ({"environment": {"lanes": 0}}, "environment.lanes = 0: expected int >= 1"),
        ({"environment": {"lanes": 1025}}, "environment.lanes = 1025: expected int <= 1024"),
        (
            {"environment": {"lanes": 4}, "child": {"backend": "ga3c"}},
            "environment.lanes = 4: the backend ga3c has ga3c.environments instead; "
            "take environment.lanes out",
        ),
        (
            {"environment": {"lanes": 4}, "algorithm": {"across_episodes": False}},
            "environment.lanes = 4: episodes in several lanes do not end together, but "
            "algorithm.across_episodes = False ends a batch with its episode; set it to true",
        ),
        *(
            (
                {"environment": {"lanes": 16}, "child": {"backend": backend}},
                "environment.lanes = 16: does not divide algorithm.batch_size = 120; "
                "set that to 112, for instance",
            )
            for backend in ("hogwild", "a:Backend")
        ),
        (
            {"environment": {"lanes": 240}},
            "environment.lanes = 240: does not divide algorithm.batch_size = 120; "
            "set that to 240, for instance",
        ),
        (
            {"algorithm": {"batch_size": 63}},
            "algorithm.minibatch_size = 64: at most algorithm.batch_size = 63 is allowed",
        ),
        (
            {"child": {"exchange": "free", "exchange_seconds": 0}},
            "child.exchange_seconds = 0: with exchange_steps = 0 too, "
            "a free child would never exchange; set one of them",
        ),
        (
            {"child": {"exchange": "chunk"}, "parent": {"rule": "experience"}},
            "child.exchange = 'chunk': averages weights, and parent.rule = 'experience' does not; "
            "take another child.exchange, or parent.rule = 'blend'",
        ),
        (
            {"child": {"exchange": "chunk"}, "search": {}},
            "child.exchange = 'chunk': averages weights, and a [search] does not; "
            "take another child.exchange, or parent.rule = 'blend'",
        ),
        (
            {"child": {"exchange": "chunk", "backend": "ga3c"}},
            "child.exchange = 'chunk': is for cores that act and learn; set child.backend to "
            "'hogwild' and leave child.roles out",
        ),
        (
            {
                "algorithm": {"name": "dqn"},
                "replay": {"steps": 5000, "url": "embedded"},
                "child": {"exchange": "chunk", "roles": ["act", "learn"]},
            },
            "child.exchange = 'chunk': is for cores that act and learn; set child.backend to "
            "'hogwild' and leave child.roles out",
        ),
        (
            {"child": {"exchange": "chunk"}, "algorithm": {"batch_size": 72}},
            "algorithm.batch_size = 72: is no multiple of 4 chunks in environment.lanes = 8; set "
            "it to 1024, for instance",
        ),
        (
            {
                "child": {"exchange": "chunk"},
                "algorithm": {"across_episodes": False},
                "environment": {"lanes": 1},
            },
            "child.exchange = 'chunk': a chunk does not end with its episode; set "
            "algorithm.across_episodes to true",
        ),
        (
            {"algorithm": {"name": "a3c", "vtrace": True}},
            "algorithm.vtrace = True: is for a3c with the backend ga3c, with "
            "child.exchange = 'chunk', or with parent.rule = 'experience', "
            "but child.backend = 'hogwild'",
        ),
        (
            {"algorithm": {"vtrace": True}, "child": {"backend": "ga3c"}},
            "algorithm.vtrace = True: is for a3c with the backend ga3c, with "
            "child.exchange = 'chunk', or with parent.rule = 'experience', but "
            "algorithm.name = 'ppo'",
        ),
        (
            {
                "algorithm": {"name": "a3c", "vtrace": True, "epsilon": 0.1},
                "child": {"backend": "ga3c"},
            },
            "algorithm.vtrace = True: knows the policy's own actions only; "
            "set algorithm.epsilon and final_epsilon to 0",
        ),
        (
            {
                "algorithm": {"name": "a3c", "epsilon": 0.5, "epsilon_spread": 7.0},
                "child": {"backend": "ga3c"},
            },
            "algorithm.epsilon_spread = 7: the backend ga3c has one ε for all agents, which "
            "follows the run alone; set it to 0, or child.backend to 'hogwild'",
        ),
        *(
            (
                {"parent": {"rule": "experience"}, section: {key: value}},
                f"{section}.{key} = {value!r}: with parent.rule = 'experience' "
                f"only {wanted!r} is possible",
            )
            for section, key, value, wanted in (
                ("child", "backend", "ga3c", "hogwild"),
                ("algorithm", "epsilon", 0.1, 0.0),
                ("algorithm", "across_episodes", False, True),
                ("replay", "steps", 500, 0),
            )
        ),
        (
            {"environment": {"vectorized": True, "wrappers": [{"name": "ClipReward"}]}},
            "environment.wrappers: 'ClipReward' cannot be put around a vectorized environment; "
            "take out environment.vectorized or the wrappers",
        ),
        (
            {"environment": {"id": "envpool:Pong-v5", "wrappers": [{"name": "ClipReward"}]}},
            "environment.wrappers: 'ClipReward' cannot be put around a vectorized environment; "
            "take out 'envpool:' of environment.id or the wrappers",
        ),
        ({"ga3c": {"agents": 65}}, "ga3c.agents = 65: at most ga3c.max_agents = 64 is allowed"),
        ({"ga3c": {"trainers": 5}}, "ga3c.trainers = 5: at most ga3c.max_trainers = 4 is allowed"),
        (
            {"ga3c": {"device": "gpu"}},
            "ga3c.device = 'gpu': expected 'auto', 'cpu', 'cuda' or 'cuda:N'",
        ),
        (
            {"parent": {"browsers": True}},
            "parent.browsers = True: a browser acts and does not learn, but parent.rule = 'blend'; "
            "set parent.rule = 'experience', or take browsers out",
        ),
        (
            {"parent": {"checkpoint_seconds": 0}},
            "parent.checkpoint_seconds = 0: with checkpoint_updates = 0 too, "
            "nothing would be saved on the way; set one of them",
        ),
        (
            {"algorithm": {"name": "ppo", "double": True}},
            "algorithm.double = True: only algorithm.name = 'dqn' has this setting",
        ),
        (
            {"algorithm": {"name": "a3c", "minibatch_size": 5}},
            "algorithm.minibatch_size = 5: only algorithm.name = 'ppo' or 'dqn' or 'vtrace' or "
            "'sac' has this setting",
        ),
        (
            {"algorithm": {"name": "vtrace"}, "replay": {"steps": 500}},
            "algorithm.start_steps = 1000: at most replay.steps = 500 is allowed, or a child with "
            "one core would never learn",
        ),
        (
            {"algorithm": {"name": "dqn", "target_updates": 0}, **KEPT},
            "algorithm.target_updates = 0: with target_versions = 0 too, θ⁻ would never follow θ; "
            "set one of them",
        ),
        (
            {"algorithm": {"name": "dqn"}, "parent": {"rule": "experience"}},
            "algorithm.name = 'dqn': samples what its own child remembers, but with parent.rule = "
            "'experience' children only act; take another parent.rule",
        ),
        (
            {"replay": {"priority_exponent": 0.6}},
            "replay.priority_exponent = 0.6: with replay.steps = 0 nothing is kept that could be "
            "drawn; set that, too",
        ),
        (
            {"algorithm": {"name": "dqn", "vtrace": True}, **KEPT},
            "algorithm.vtrace = True: is for a3c with the backend ga3c, with "
            "child.exchange = 'chunk', or with parent.rule = 'experience', but "
            "algorithm.name = 'dqn'",
        ),
        (
            {"algorithm": {"name": "vtrace", "burn_in": 4}, **KEPT},
            "algorithm.burn_in = 4: brings the state of a memory up to date, but network.memory = "
            "0; set that, or take algorithm.burn_in out",
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_line(settings: dict[str, Any], line: str) -> None:
    assert wrong(settings) == f"lander.toml: {line}"


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": {"name": "a3c", "batch_size": 5}},
        {"algorithm": {"batch_size": 64, "minibatch_size": 64}},
        {"child": {"exchange": "free", "exchange_seconds": 0, "exchange_steps": 1}},
        {"child": {"exchange": "episode", "exchange_seconds": 0}},
        {"child": {"exchange": "update", "exchange_seconds": 0}},
        {"child": {"exchange": "chunk", "backend": "a:Backend"}},
        {"algorithm": {"name": "a3c", "vtrace": True}, "child": {"backend": "mine:Backend"}},
        {"parent": {"checkpoint_seconds": 0, "checkpoint_updates": 1}},
        {"environment": {"exclusive": True}},
        {"environment": {"exclusive": True}, "child": {"cores": 1}},
        {"environment": {"period": 0.02}, **CORES},
        {"environment": {"period": 0.02, "safe_action": [0], "safe_seconds": 0.021}, **CORES},
        {
            "environment": {"period": 0.02, "safe_action": [0], "offline_seconds": 0.01},
            "parent": {"rule": "experience"},
            **CORES,
        },
        {"environment": {"lanes": 120}},
        {"algorithm": {"name": "dqn", "batch_size": 4}, **KEPT},
        {"algorithm": {"batch_size": 8}, "parent": {"rule": "experience"}},
        {"algorithm": {"name": "a3c", "vtrace": True}, "child": {"backend": "ga3c"}},
        {"algorithm": {"name": "a3c", "vtrace": True}, "parent": {"rule": "experience"}},
        {"algorithm": {"name": "a3c", "vtrace": True}, **CHUNK},
        {"algorithm": {"name": "mine:Learner", "vtrace": True}, **CHUNK},
        {"algorithm": {"name": "vtrace", "burn_in": 4}, "network": {"memory": 8}, **KEPT},
        {"algorithm": {"batch_size": 96}, **CHUNK},
        {"parent": {"browsers": True, "rule": "experience"}},
        {"environment": {"vectorized": True}},
        {"environment": {"wrappers": [{"name": "ClipReward"}]}},
    ],
)
def test_combinations_that_make_sense_are_allowed(settings: dict[str, Any]) -> None:
    Experiment.from_dict(settings)


@given(
    st.sampled_from(sorted(CHANGES)),
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)
@hypothesis.example("algorithm.name", [1])
def test_any_value_is_taken_or_told_in_one_line(key: str, value: Any) -> None:
    try:
        Experiment().with_settings({key: value}, source="lander.toml")
    except ConfigurationError as error:
        assert str(error).startswith(f"lander.toml: {key}")
        # Of a list, the element that is wrong.
        assert repr(value) in str(error) or isinstance(value, list)
        assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (
            "child.exchnge",
            "child.exchnge = 1: no such setting; did you mean 'exchange'?",
        ),
        ("qqq", f"qqq = 1: no such setting; known here: {SECTIONS}"),
        ("qqq.deeper", f"qqq = {{'deeper': 1}}: no such setting; known here: {SECTIONS}"),
        ("child", "child = 1: expected a table, got int"),
        ("seed.deeper", "seed.deeper: 'seed' is no section"),
        ("child.exchange.deeper", "child.exchange.deeper: 'exchange' is no section"),
    ],
)
def test_a_single_setting_that_is_wrong_is_told_too(key: str, line: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Experiment().with_settings({key: 1})
    assert str(caught.value) == f"--set: {line}"


# Settings of some children.

CHILDREN = [
    {"name": "*", "settings": {"environment": {"options": {"port": "any:0", "friction": 0.1}}}},
    {"name": "pi-[12]", "settings": {"environment.options.friction": 0.2, "environment.lanes": 2}},
    {"name": "pi-2", "settings": {"environment.options.friction": 0.3}},
    {"name": "GPU", "settings": {"child.backend": "ga3c", "ga3c.agents": 3}},
]


def test_a_child_has_the_settings_of_the_entries_with_its_name() -> None:
    experiment = Experiment.from_dict({"children": CHILDREN})
    found = {
        name: (own.environment.options["friction"], own.environment.lanes, own.child.backend)
        for name in ("pi-1", "pi-2", "pi-3", "gpu", "GPU")
        for own in [experiment.for_child(name)]
    }
    assert found == {
        "pi-1": (0.2, 2, "hogwild"),
        "pi-2": (0.3, 2, "hogwild"),
        "pi-3": (0.1, 1, "hogwild"),
        "gpu": (0.1, 1, "hogwild"),
        "GPU": (0.1, 1, "ga3c"),
    }
    assert experiment.for_child("pi-2").children == ()
    plain = Experiment()
    assert plain.for_child("pi-2") == plain and "children" not in plain.to_dict()
    text = experiment.to_toml()
    assert Experiment.from_dict(tomllib.loads(text)) == experiment


def test_what_is_published_has_no_secret_and_nothing_else_is_changed() -> None:
    changes: dict[str, Any] = {
        "algorithm.name": "dqn",
        "algorithm.demonstrations": ["/home/ada/secret.steps"],
        "algorithm.gamma": 0.9,
        "child.roles": ["act", "learn"],
        "parent.listen": "secret.example:8765",
        "parent.tokens_file": "/home/ada/secret",
        "replay.url": "redis://:secret@10.0.0.7:6379",
    }
    plain = Experiment().with_settings(changes)
    entry = ChildOverride(name="secret-1", settings={"child.hang_seconds": 7})
    published = msgspec.structs.replace(plain, children=(entry,)).published()
    assert "secret" not in published.to_toml() and "home" not in published.to_toml()
    hidden = {"algorithm.demonstrations", "parent.listen", "parent.tokens_file", "replay.url"}
    assert {
        key
        for key, value in flat(published.to_dict()).items()
        if value != flat(plain.to_dict())[key]
    } == hidden
    assert published.shares_replay
    search = Experiment.from_dict(
        {
            "search": {
                "storage": "postgresql://secret@db",
                "phase_steps": 1000,
                "space": {"algorithm": {"gamma": [0.9, 0.99]}},
            }
        }
    )
    assert "secret" not in search.published().to_toml()


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (
            {"name": "gpu-*", "settings": {"algorithm.gamma": 0.9}},
            "[[children]] 'gpu-*': settings.algorithm.gamma = 0.9: is the same for all children; "
            "a child may have its own environment.options, environment.lanes, environment.period, "
            "environment.safe, environment.offline_seconds, algorithm.demonstrations, "
            "child.backend, child.hang_seconds, ga3c",
        ),
        (
            {"name": "gpu-*", "settings": {"environment": {"lanes": 0}}},
            "[[children]] 'gpu-*': environment.lanes = 0: expected int >= 1",
        ),
        (
            {"name": "pi", "settings": {"child.backend": "hogwlid"}},
            "[[children]] 'pi': child.backend = 'hogwlid': expected one of 'hogwild', 'ga3c', or "
            "an import string 'module:Name'",
        ),
        ({"name": ""}, "children[0].name = '': expected str of length >= 1"),
        ({"names": "pi"}, "children[0].names = 'pi': no such setting; did you mean 'name'?"),
        ({"settings": {}}, "children[0] = {'settings': {}}: object missing required field name"),
    ],
)
def test_an_entry_that_is_wrong_is_told_with_its_name(entry: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Experiment.from_dict({"children": [entry]}, source="x.toml")
    assert str(caught.value) == f"x.toml: {line}"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    def error(path: Path, kind: type[Exception]) -> str:
        with pytest.raises(kind) as caught:
            Experiment.load(path)
        return str(caught.value)

    absent, broken, binary = (
        tmp_path / "absent.toml",
        tmp_path / "broken.toml",
        tmp_path / "binary.toml",
    )
    broken.write_text("seed = \n")
    hostile = tmp_path / "hostile.toml"
    deep = "not settings: it is nested too deeply"
    for text, words in (
        (f"[{'.'.join('a' * 5000)}]", deep),
        (f"{'.'.join('a' * 5000)} = 1", deep),
        ("x = " + "[" * 5000 + "]" * 5000, deep),
        ("[environment.options]\nx = " + "[" * 300 + "]" * 300, deep),
        ("seed = " + "9" * 5000, "not valid TOML: Exceeds the limit (4300 digits) for integer"),
        ("#" * (1 << 20) + "\n", "not settings: more than 1 MiB; name another file"),
    ):
        hostile.write_text(text)
        assert error(hostile, ConfigurationError).startswith(f"{hostile}: {words}")
    hostile.write_text("#" * ((1 << 20) - 1) + "\n")
    assert Experiment.load(hostile).seed == 0
    binary.write_bytes(b"\xff\xfe")
    assert error(absent, ConfigurationError).startswith(f"{absent}: no such file; ")
    assert (
        error(tmp_path, ConfigurationError) == f"{tmp_path}: is a directory, expected a TOML file"
    )
    assert (
        error(broken, ConfigurationError)
        == f"{broken}: not valid TOML: Invalid value (at line 1, column 8)"
    )
    assert error(binary, ConfigurationError).startswith(
        f"{binary}: not valid TOML: 'utf-8' codec can't decode byte 0xff"
    )
    assert (
        error(broken / "below.toml", EnvironmentFailure)
        == f"{broken / 'below.toml'}: cannot be read: Not a directory"
    )


@pytest.mark.parametrize("name", ["a3c", "ppo", "dqn", "vtrace", "mine:Learner"])
def test_an_experiment_says_what_its_algorithm_has_and_is_read_back(name: str) -> None:
    experiment = Experiment.from_dict({"algorithm": {"name": name}, **KEPT})
    settings = experiment.to_dict()
    assert Experiment.from_dict(settings) == experiment
    has = {key: key in settings["algorithm"] for key in ("clip", "minibatch_size", "double")}
    assert has == {
        "clip": name in ("ppo", "mine:Learner"),
        "minibatch_size": name != "a3c",
        "double": name in ("dqn", "mine:Learner"),
    }


def test_another_algorithm_can_be_set_and_takes_its_own_settings() -> None:
    plain = Experiment.from_dict({**KEPT})
    changed = plain.with_settings({"algorithm.name": "dqn", "algorithm.n_steps": 3})
    assert (changed.algorithm.name, changed.algorithm.n_steps) == ("dqn", 3)
    assert changed.with_settings({"algorithm.name": "a3c"}).algorithm.name == "a3c"
    robot = {"environment": {"period": 0.02}, "child": {"cores": 1}}
    for more in (SEARCH, robot):
        sampling = Experiment.from_dict({"algorithm": {"name": "dqn"}, **KEPT, **more})
        ppo = sampling.with_settings({"algorithm.name": "ppo"})
        lanes, rule = (8, "blend") if more is SEARCH else (1, "experience")
        assert (ppo.algorithm.batch_size, ppo.environment.lanes, ppo.parent.rule) == (
            *(1024, lanes, rule),
        )


@pytest.mark.parametrize("name", ["ppo", "sac"])
@pytest.mark.parametrize(
    "more",
    [
        {"replay": {"steps": 5000, "priority_exponent": 0.6}},
        {"replay": {"steps": 5000, "url": "embedded"}, "child": {"roles": ["act", "learn"]}},
    ],
)
def test_settings_of_a_replay_go_with_the_algorithm_that_had_it(
    name: str, more: dict[str, Any]
) -> None:
    before = Experiment.from_dict({"algorithm": {"name": "dqn"}, **more})
    after = before.with_settings({"algorithm.name": name})
    replay = (after.replay.priority_exponent, after.replay.url, after.child.roles)
    assert replay == (0.0, "local", ("bundle",))
    alone = Experiment.from_dict({"algorithm": {"name": "sac"}, "environment": {"exclusive": True}})
    assert alone.with_settings({"algorithm.name": "ppo"}).environment.lanes == 1


KINDS = {"ppo": "new", "a3c": "new", "dqn": "old", "vtrace": "old", "sac": "sac"}


@pytest.mark.parametrize("name", KINDS)
def test_another_algorithm_brings_its_own_settings_to_every_example(name: str) -> None:
    for example_name, file in examples().items():
        before = Experiment.load(file)
        samples = KINDS[name] != "new"
        if KINDS[name] == KINDS[before.algorithm.name]:
            assert brought(before.algorithm.name, name) == {}
            continue
        after = before.with_settings({"algorithm.name": name, "optimizer.learning_rate": 0.5})
        assert after.optimizer.learning_rate == 0.5, example_name
        assert bool(after.replay.steps) == samples
    assert brought("ppo", "mine:Learner") == brought("mine:Learner", "dqn") == {}


@pytest.mark.parametrize("odd", [None, np.float64(1.5), Path("map.png")])
def test_options_that_only_python_has_are_refused_when_they_are_written(odd: Any) -> None:
    experiment = Experiment(environment=Environment(id="FrozenLake-v1", options={"desc": odd}))
    with pytest.raises(ConfigurationError, match=r"^options: .*leave out what is None$"):
        experiment.to_toml()


def test_settings_of_others_are_left_out() -> None:
    section = {"name": "a3c", "gamma": 0.9, "clip": 0.2, "n_steps": 3}
    assert applicable_settings(section, "a3c") == {"name": "a3c", "gamma": 0.9}
    assert applicable_settings(section, "vtrace") == {"name": "a3c", "gamma": 0.9, "n_steps": 3}


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"algorithm": {"name": "sac"}}, "algorithm.name = 'sac': take one of 'a3c', 'ppo', 'vtr"),
        ({"algorithm": {"name": "dqn"}, **KEPT}, "algorithm.name = 'dqn'"),
        ({"algorithm": {"name": "mine:Learner"}}, "algorithm.name = 'mine:Learner'"),
        ({"network": {"name": "mine:Net"}}, "network.name = 'mine:Net'"),
        ({"child": {"backend": "ga3c"}}, "child.backend = 'ga3c': set it to 'hogwild'"),
        (
            {"algorithm": {"name": "vtrace"}, "replay": {"steps": 5000, "url": "redis://:w@x:1"}},
            "replay.url = 'redis://…@x:1'",  # without the password
        ),
        (
            {"children": [{"name": "gpu", "settings": {"child.backend": "ga3c"}}]},
            "child.backend = 'ga3c'",
        ),
    ],
)
def test_what_has_no_memory_says_so(settings: dict[str, Any], cause: str) -> None:
    network = {"memory": 64, **settings.get("network", {})}
    with pytest.raises(ConfigurationError) as caught:
        Experiment.from_dict({**settings, "network": network})
    said = str(caught.value)
    assert f"network.memory = 64: is impossible with {cause}" in said
    assert said.endswith(", or network.memory to 0")
    without = {**settings, "network": {**network, "memory": 0}}
    assert Experiment.from_dict(without).network.memory == 0


def test_an_example_is_read_by_its_name() -> None:
    assert Experiment.load("cartpole") == Experiment.load(example("cartpole"))
