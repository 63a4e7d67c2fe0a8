"""`[search]` of an experiment: what it may say, and what is wrong with it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.settings import SearchSettings
from tests.helpers import ROOT

SPACE: dict[str, Any] = {"optimizer": {"learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}}}
LEAST: dict[str, Any] = {"phase_steps": 10, "space": SPACE}

naturals = st.integers(1, 10**6)
positive = st.floats(0.0, 1e30, exclude_min=True)

#: Every setting but the lengths of a phase, with values that are allowed whatever the others are.
CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "method": st.sampled_from(["hypertrick", "random"]),
    # Other values are for other methods: `test_the_settings_of_other_methods_arrive`.
    "reduction_factor": st.none(),
    "least_phases": st.just(1),
    "trials": naturals,
    "phases": st.integers(1, 1000),
    "eviction_rate": st.floats(0.0, 1.0, exclude_min=True, exclude_max=True),
    "decisions": st.sampled_from(["every", "geometric"]),
    "factor": st.integers(2, 100),
    "cohort": st.integers(0, 1000),
    "adaptive": st.booleans(),
    "sampler": st.sampled_from(["random", "tpe", "optuna.samplers:QMCSampler", "mine:Sampler"]),
    "sampler_options": st.dictionaries(
        st.text(max_size=5), st.booleans() | st.integers(0, 9) | st.text(max_size=3), max_size=2
    ),
    "seconds": positive,
    "retries": st.integers(0, 10),
    "return_seconds": st.floats(0.0, 1e30),
    "storage": st.sampled_from(["", "postgresql+psycopg://me@there/search", "sqlite:////tmp/x.db"]),
    "space": st.sampled_from(
        [
            SPACE,
            {"algorithm.gamma": [0.9, 0.99], "network": {"hidden": [[8], [16, 16]]}},
            {
                "algorithm": {"batch_size": {"low": 64, "high": 100, "log": True, "step": 1}},
                "seed": [1, 2, 3],
            },
            {"environment": {"options": {"wind": {"low": 0.0, "high": 20.0, "step": 5.0}}}},
        ]
    ),
}
LENGTHS: dict[str, st.SearchStrategy[Any]] = {
    "phase_steps": naturals,
    "phase_episodes": naturals,
    "phase_seconds": positive,
}


def of(**search: Any) -> Experiment:
    return Experiment.from_dict({"search": search})


def test_every_setting_is_tried_here() -> None:
    assert {
        field.name for field in msgspec.structs.fields(SearchSettings)
    } == CHANGES.keys() | LENGTHS.keys()


@given(st.fixed_dictionaries({}, optional=CHANGES), st.sampled_from(sorted(LENGTHS)), st.data())
def test_every_allowed_value_arrives_and_survives(
    chosen: dict[str, Any], length: str, data: st.DataObject
) -> None:
    chosen = {"space": SPACE, **chosen, length: data.draw(LENGTHS[length])}
    experiment = of(**chosen)
    assert experiment.search is not None
    assert {key: getattr(experiment.search, key) for key in chosen} == chosen
    assert Experiment.from_dict(experiment.to_dict()) == experiment
    assert Experiment.from_dict(tomllib.loads(experiment.to_toml())) == experiment
    assert experiment.search.unit == length.removeprefix("phase_")
    assert experiment.search.length == chosen[length]
    decisions = experiment.search.decide_after
    assert list(decisions) == sorted(set(decisions)) and all(
        0 <= phase < experiment.search.phases - 1 for phase in decisions
    )


@pytest.mark.parametrize("method", ["hyperband", "asha"])
def test_the_settings_of_other_methods_arrive(method: str) -> None:
    chosen = {"method": method, "reduction_factor": 2, "least_phases": 3}
    experiment = of(**LEAST, **chosen)
    assert {key: getattr(experiment.search, key) for key in chosen} == chosen
    assert Experiment.from_dict(tomllib.loads(experiment.to_toml())) == experiment
    assert of(**LEAST, method=method).search.reduction_factor is None  # type: ignore[union-attr]


def test_a_plain_experiment_has_no_search() -> None:
    assert Experiment().search is None
    assert "search" not in Experiment().to_dict()


def test_the_example_is_one() -> None:
    experiment = Experiment.load(ROOT / "examples" / "lunarlander" / "search.toml")
    assert experiment.search is not None
    assert set(experiment.search.space) == {"optimizer", "algorithm"}


def test_a_single_setting_can_be_changed() -> None:
    experiment = of(**LEAST).with_settings(
        {"search.trials": 5, "search.space.algorithm.gamma": [0.5, 0.9]}
    )
    assert experiment.search is not None
    assert experiment.search.trials == 5
    assert experiment.search.space == {**SPACE, "algorithm": {"gamma": [0.5, 0.9]}}


def test_decisions_by_values() -> None:
    found = [
        of(**LEAST, phases=27, decisions=decisions).search.decide_after
        for decisions in ("every", "geometric")
    ]  # type: ignore[union-attr]
    assert found == [tuple(range(26)), (0, 2, 8)]


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"search": {"trials": 0}}, "search.trials = 0: expected int >= 1"),
    ({"search": {"trials": -3}}, "search.trials = -3: expected int >= 1"),
    ({"search": {"trials": 1.5}}, "search.trials = 1.5: expected int"),
    ({"search": {"phases": 0}}, "search.phases = 0: expected int >= 1"),
    ({"search": {"eviction_rate": 0.0}}, "search.eviction_rate = 0.0: expected float > 0.0"),
    ({"search": {"eviction_rate": 1.0}}, "search.eviction_rate = 1.0: expected float < 1.0"),
    ({"search": {"eviction_rate": 1.5}}, "search.eviction_rate = 1.5: expected float < 1.0"),
    ({"search": {"eviction_rate": -0.1}}, "search.eviction_rate = -0.1: expected float > 0.0"),
    ({"search": {"eviction_rate": float("nan")}}, "search.eviction_rate = nan: expected float"),
    ({"search": {"factor": 1}}, "search.factor = 1: expected int >= 2"),
    (
        {"search": {"method": "ashes"}},
        "search.method = 'ashes': expected one of 'hypertrick', 'hyperband', 'asha', 'random'",
    ),
    *(
        (
            {"search": {"method": method, **own}},
            f"search.{key} = {value!r}: search.method = {needed} is needed for this, "
            f"and it is {method!r}; take one of them out",
        )
        for own, needed, methods in (
            ({"cohort": 16}, "'hypertrick'", ("hyperband", "asha")),
            ({"eviction_rate": 0.5}, "'hypertrick'", ("hyperband", "asha")),
            ({"decisions": "geometric"}, "'hypertrick'", ("hyperband", "asha")),
            ({"reduction_factor": 3}, "'hyperband' or 'asha'", ("hypertrick", "random")),
            ({"least_phases": 2}, "'hyperband' or 'asha'", ("hypertrick", "random")),
        )
        for method in methods
        for key, value in own.items()
    ),
    ({"search": {"reduction_factor": 1}}, "search.reduction_factor = 1: expected int >= 2"),
    (
        {"search": {"method": "asha", "least_phases": 11}},
        "search.least_phases = 11: at most search.phases = 10 is allowed",
    ),
    (
        {"search": {"decisions": "none"}},
        "search.decisions = 'none': expected one of 'every', 'geometric'",
    ),
    (
        {"search": {"sampler": "gp"}},
        "search.sampler = 'gp': expected one of 'random', 'tpe', or an import string 'module:Name'",
    ),
    ({"search": {"sampler": ""}}, "search.sampler = '': expected one of"),
    ({"search": {"seconds": 0}}, "search.seconds = 0: expected float > 0.0"),
    ({"search": {"retries": -1}}, "search.retries = -1: expected int >= 0"),
    ({"search": {"return_seconds": -1}}, "search.return_seconds = -1: expected float >= 0.0"),
    ({"search": {"phase_steps": 0}}, "search.phase_steps = 0: expected int >= 1"),
    (
        {"search": {"phase_steps": None}},
        "search.phase_steps is absent: "
        "give exactly one of phase_steps, phase_episodes and phase_seconds",
    ),
    (
        {"search": {"phase_seconds": 3.0}},
        "search.phase_steps = 10, search.phase_seconds = 3.0: "
        "give exactly one of phase_steps, phase_episodes and phase_seconds",
    ),
    ({"search": {"trails": 3}}, "search.trails = 3: no such setting; did you mean 'trials'?"),
    ({"search": {"space": {}}}, "search.space: is empty"),
    ({"search": {"space": 3}}, "search.space = 3: expected a table"),
    (
        {"search": {"space": {"optimizer": {"learning_rate": {"low": 1.0, "high": 0.1}}}}},
        "optimizer.learning_rate: low = 1.0 is not below",
    ),
    (
        {"search": {"space": {"optimizer": {"lerning_rate": [0.1]}}}},
        "search.space: optimizer.lerning_rate = 0.1: no such setting; did you mean",
    ),
    (
        {"search": {"space": {"optimiser": {"learning_rate": [0.1]}}}},
        "search.space: optimiser = {'learning_rate': 0.1}: no such setting; did you",
    ),
    (
        {"search": {"space": {"seed": [1, 2], "optimiser": {"name": ["adam"]}}}},
        "search.space: optimiser = {'name': 'adam'}: no such setting",
    ),
    ({"search": {"space": {"gamma": [0.9]}}}, "search.space: gamma = 0.9: no such setting"),
    (
        {"search": {"space": {"algorithm": {"gamma": [0.9, 1.5]}}}},
        "search.space: algorithm.gamma = 1.5: expected float <= 1.0",
    ),
    (
        {"search": {"space": {"algorithm": {"gamma": {"low": 0.5, "high": 1.5}}}}},
        "search.space: algorithm.gamma = 1.5: expected float <= 1.0",
    ),
    (
        {"search": {"space": {"optimizer": {"learning_rate": {"low": 0.0, "high": 1.0}}}}},
        "search.space: optimizer.learning_rate = 0.0: expected",
    ),
    (
        {"search": {"space": {"algorithm": {"batch_size": {"low": 0.5, "high": 9.0}}}}},
        "search.space: algorithm.batch_size = 0.5: expected int",
    ),
    (
        {"search": {"space": {"network": {"hidden": [[8], [0]]}}}},
        "search.space: network.hidden[0] = 0: expected int >= 1",
    ),
    (
        {"search": {"space": {"network": {"hidden": [8, 16]}}}},
        "search.space: network.hidden = 8: expected array",
    ),
    (
        {"search": {"space": {"optimizer": {"name": ["adam", "adamw"]}}}},
        "search.space: optimizer.name = 'adamw': expected one of",
    ),
    (
        {"search": {"space": {"algorithm": {"name": {"deeper": [1, 2]}}}}},
        "search.space: algorithm.name.deeper: 'name' is no section",
    ),
    (
        {
            "algorithm": {"name": "ppo", "minibatch_size": 64},
            "search": {"space": {"algorithm": {"batch_size": [32, 128]}}},
        },
        "search.space: algorithm.minibatch_size = 64: at most algorithm.batch_size = 32 is allowed",
    ),
    (
        {"algorithm": {"name": "a3c"}, "search": {"space": {"algorithm": {"clip": [0.1, 0.2]}}}},
        "search.space: algorithm.clip = 0.1: only algorithm.name = 'ppo' has this",
    ),
    *(
        (
            {"search": {"space": {key: [1, 2]}}},
            f"search.space: {key}: belongs to the whole run and cannot differ between trials",
        )
        for key in (
            "parent.alpha",
            "parent.nonsense",
            "stop.updates",
            "search.trials",
            "name",
            "solved",
        )
    ),
    *(
        (
            {"stop": {key: 3}},
            f"stop.{key} = {shown}: a search ends after search.trials or search.seconds",
        )
        for key, shown in (
            ("updates", "3"),
            ("episodes", "3"),
            ("seconds", "3.0"),
            ("mean_return", "3.0"),
        )
    ),
]


@pytest.mark.parametrize(("changes", "problem"), FAULTS)
def test_what_is_wrong_is_told_in_one_line(
    changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    search = {
        key: value
        for key, value in {**LEAST, **changes.get("search", {})}.items()
        if value is not None
    }
    settings = {"name": "test", **changes, "search": search}
    for source in ("the experiment", "an = odd: file.toml"):
        with pytest.raises(ConfigurationError) as error:
            Experiment.from_dict(settings, source=source)
        text = str(error.value)
        assert text.startswith(
            f"{source}: {problem}"
            if problem.startswith(("search", "stop"))
            else f"{source}: search.space: {problem}"
        )
        assert "\n" not in text and "`" not in text


@pytest.mark.parametrize(
    "settings",
    [
        {"stop": {"window": 5}},
        {
            "algorithm": {"name": "ppo"},
            "space": {"algorithm": {"batch_size": [32, 512], "minibatch_size": [16, 64]}},
        },
        {
            "algorithm": {"name": "ppo"},
            "space": {"algorithm": {"batch_size": [64, 512], "minibatch_size": [16, 256, 512]}},
        },
        {"space": {"algorithm": {"name": ["a3c", "ppo"], "epochs": [2, 4]}}},
        {"space": {"environment": {"id": ["CartPole-v1", "Acrobot-v1"]}}},
        {"space": {"child": {"beta": {"low": 0.0, "high": 1.0}}, "seed": {"low": 0, "high": 100}}},
    ],
)
def test_what_may_fit_is_allowed(settings: dict[str, Any]) -> None:
    settings = dict(settings)
    search = {**LEAST, "space": settings.pop("space", SPACE)}
    assert Experiment.from_dict({**settings, "search": search}).search is not None
