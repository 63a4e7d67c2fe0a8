"""`[search]` of an experiment: what it may say, and what is wrong with it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.hyperband import Halving, SynchronousHalving
from genkidama.plugins.hypertrick.pbt import PopulationBasedTraining
from genkidama.plugins.hypertrick.rule import HyperTrick
from genkidama.plugins.hypertrick.settings import SearchSettings
from genkidama.plugins.hypertrick.space import Dimension, parse_space

SPACE: dict[str, Any] = {"optimizer": {"learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}}}
LEAST: dict[str, Any] = {"phase_steps": 10, "space": SPACE}

SPACES: list[dict[str, Any]] = [
    SPACE,
    {"algorithm.gamma": [0.9, 0.99], "network": {"hidden": [[8], [16, 16]]}},
    {"algorithm.batch_size": {"low": 64, "high": 100, "log": True, "step": 1}, "seed": [1, 2, 3]},
    {"environment": {"options": {"wind": {"low": 0.0, "high": 20.0, "step": 5.0}}}},
]

naturals = st.integers(1, 10**6)
positive = st.floats(0.0, 1e30, exclude_min=True)

#: Every setting but the lengths of a phase, with values that are allowed whatever the others are.
CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "method": st.sampled_from(["hypertrick", "random"]),
    # Other values are for other methods: `test_the_rule_takes_all_settings_of_its_method`.
    "reduction_factor": st.none(),
    "least_phases": st.just(1),
    "restart": st.just(False),
    "truncation": st.just(0.2),
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
    "space": st.sampled_from(SPACES),
}
LENGTHS: dict[str, st.SearchStrategy[Any]] = {
    "phase_steps": naturals,
    "phase_episodes": naturals,
    "phase_seconds": positive,
}


def of(**search: Any) -> Experiment:
    return Experiment.from_dict({"search": search})


def test_every_setting_is_tried_here() -> None:
    assert set(SearchSettings.__struct_fields__) == CHANGES.keys() | LENGTHS.keys()


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


HALVING = ("successive_halving", "hyperband", "asynchronous_hyperband", "asha")


RULES: dict[str, tuple[Any, ...]] = {
    "hypertrick": (HyperTrick, tuple(range(26)), None),
    "random": (HyperTrick, (), None),
    "pbt": (PopulationBasedTraining, tuple(range(26)), None),
    "asha": (Halving, (0, 3, 15), 4),
    "asynchronous_hyperband": (Halving, (0, 2, 8), 3),
    "successive_halving": (SynchronousHalving, (0, 2, 8), 3),
    "hyperband": (SynchronousHalving, (0, 2, 8), 3),
}


@pytest.mark.parametrize("method", RULES)
def test_each_method_has_its_rule_with_the_factor_of_its_paper(method: str) -> None:
    search = of(**LEAST, method=method, phases=27, trials=50).search
    assert search is not None
    rule = search.rule()
    kind, decide_after, factor = RULES[method]
    assert (type(rule), rule.workers, rule.phases) == (kind, 50, 27)
    assert (rule.decide_after, search.eta) == (decide_after, factor)
    assert search.rule(trials=7).workers == 7


def test_the_rule_takes_all_settings_of_its_method() -> None:
    own = {"eviction_rate": 0.4, "cohort": 16, "adaptive": True, "decisions": "geometric"}
    rule: Any = of(**LEAST, **own).search.rule(seed=3)  # type: ignore[union-attr]
    assert (rule.eviction_rate, rule.cohort, rule.adaptive, rule.seed) == (0.4, 16, True, 3)
    assert rule.decide_after == (0, 2, 8)
    own = {"method": "asynchronous_hyperband", "reduction_factor": 2, "least_phases": 3}
    rule = of(**LEAST, **own, phases=13).search.rule()  # type: ignore[union-attr]
    assert (rule.decide_after, rule.bracket(0), rule.bracket(4)) == ((2, 5, 11), 0, 1)
    own = {"method": "hyperband", "restart": True, "least_phases": 3}
    rule = of(**LEAST, **own, phases=27).search.rule()  # type: ignore[union-attr]
    assert [rule.length(trial) for trial in (0, 9, 12)] == [3 + 9 + 27, 9 + 27, 27]


ANY_HALVING = " or ".join(map(repr, HALVING))
ONE_LENGTH = "give exactly one of phase_steps, phase_episodes and phase_seconds"

FAULTS: list[tuple[dict[str, Any], str]] = [
    *(
        ({"search": {key: value}}, f"search.{key} = {value!r}: {problem}")
        for key, value, problem in (
            ("trials", 0, "expected int >= 1"),
            ("eviction_rate", 0.0, "expected float > 0.0"),
            ("eviction_rate", 1.0, "expected float < 1.0"),
            ("sampler", "gp", "expected one of 'random', 'tpe', or an import string 'module:Name'"),
            ("trails", 3, "no such setting; did you mean 'trials'?"),
            ("space", 3, "expected a table"),
        )
    ),
    (
        {"search": {"method": "ashes"}},
        "search.method = 'ashes': expected one of 'hypertrick', 'successive_halving', "
        "'hyperband', 'asynchronous_hyperband', 'asha'",
    ),
    *(
        (
            {"search": {"method": method, **own}},
            f"search.{key} = {value!r}: search.method = {needed} is needed for this, "
            f"and it is {method!r}; take one of them out",
        )
        for own, needed, methods in (
            ({"cohort": 16}, "'hypertrick'", HALVING),
            ({"eviction_rate": 0.5}, "'hypertrick'", HALVING),
            ({"decisions": "geometric"}, "'hypertrick'", HALVING),
            (
                {"reduction_factor": 3},
                ANY_HALVING,
                ("hypertrick", "random"),
            ),
            ({"least_phases": 2}, ANY_HALVING, ("hypertrick", "random")),
        )
        for method in methods
        for key, value in own.items()
    ),
    (
        {"search": {"method": "asha", "restart": True}},
        "search.restart = True: search.method = 'successive_halving' or 'hyperband' is needed",
    ),
    (
        {"search": {"method": "asha", "truncation": 0.3}},
        "search.truncation = 0.3: search.method = 'pbt' is needed for this",
    ),
    *(
        (
            {"search": {"method": "pbt", "space": {key: choices}}},
            f"search.space: {key}: with search.method = 'pbt' trials copy each other's weights",
        )
        for key, choices in (
            ("network.hidden", [[8], [16]]),
            ("network", [{"hidden": [8]}, {"hidden": [16]}]),
            ("algorithm", [{"name": "a3c"}, {"name": "ppo"}]),
        )
    ),
    (
        {"search": {"method": "hyperband", "restart": True}, "parent": {"start": "runs/a"}},
        "search.restart = true: trials begin from scratch, and not from parent.start = 'runs/a'",
    ),
    (
        {"search": {"method": "asha", "least_phases": 11}},
        "search.least_phases = 11: at most search.phases = 10 is allowed",
    ),
    ({"search": {"phase_steps": None}}, f"search.phase_steps is absent: {ONE_LENGTH}"),
    (
        {"search": {"phase_seconds": 3.0}},
        f"search.phase_steps = 10, search.phase_seconds = 3.0: {ONE_LENGTH}",
    ),
    *(
        ({"search": {"space": space}}, f"search.space: {problem}")
        for space, problem in (
            ({}, "is empty"),
            ({"optimizer.lerning_rate": [0.1]}, "optimizer.lerning_rate = 0.1: no such setting"),
            ({"optimiser.name": ["adam"]}, "optimiser = {'name': 'adam'}: no such setting; did"),
            ({"gamma": [0.9]}, "gamma = 0.9: no such setting"),
            ({"algorithm.gamma": [0.9, 1.5]}, "algorithm.gamma = 1.5: expected float <= 1.0"),
            ({"algorithm.gamma": {"low": 0.5, "high": 1.5}}, "algorithm.gamma = 1.5: expected"),
            ({"algorithm.batch_size": {"low": 0.5, "high": 9}}, "algorithm.batch_size = 0.5: "),
            ({"network": {"hidden": [[8], [0]]}}, "network.hidden[0] = 0: expected int >= 1"),
            ({"optimizer": {"name": ["adam", "adamw"]}}, "optimizer.name = 'adamw': expected one"),
            ({"algorithm.name.deeper": [1, 2]}, "algorithm.name.deeper: 'name' is no section"),
        )
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
            "name",
            "solved",
            "parent.alpha",
            "parent.nonsense",
            "stop.updates",
            "search.trials",
        )
    ),
    *(
        ({"stop": {key: n}}, f"stop.{key} = {n}: a search ends after search.trials or search.")
        for key, n in (("updates", 3), ("episodes", 3), ("seconds", 3.0), ("mean_return", 3.0))
    ),
]


@pytest.mark.parametrize(("changes", "problem"), FAULTS)
def test_what_is_wrong_is_told_in_one_line(
    changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    search = {**LEAST, **changes.get("search", {})}
    search = {key: value for key, value in search.items() if value is not None}
    settings = {"name": "test", **changes, "search": search}
    for source in ("the experiment", "an = odd: file.toml"):
        with pytest.raises(ConfigurationError) as error:
            Experiment.from_dict(settings, source=source)
        text = str(error.value)
        assert text.startswith(f"{source}: {problem}")
        assert "\n" not in text and "`" not in text


@pytest.mark.parametrize(
    "settings",
    [
        {"stop": {"window": 5}},
        *(
            {
                "algorithm": {"name": "ppo"},
                "space": {"algorithm": {"batch_size": batches, "minibatch_size": minibatches}},
            }
            for batches, minibatches in (([32, 512], [16, 64]), ([64, 512], [16, 256, 512]))
        ),
        {"space": {"algorithm": {"name": ["a3c", "ppo"], "epochs": [2, 4]}}},
        {"space": {"environment": {"id": ["CartPole-v1", "Acrobot-v1"]}}},
        {"space": {"child": {"beta": {"low": 0.0, "high": 1.0}}, "seed": {"low": 0, "high": 100}}},
    ],
)
def test_what_may_fit_is_allowed(settings: dict[str, Any]) -> None:
    settings = dict(settings)
    search = {**LEAST, "space": settings.pop("space", SPACE)}
    assert Experiment.from_dict({**settings, "search": search}).search is not None


PAPER = """
[space]
optimizer.learning_rate = { low = 1e-5, high = 1e-2, log = true }
algorithm.batch_size = { low = 2, high = 100, log = true, step = 1 }
algorithm.gamma = { choices = [0.9, 0.99, 0.999] }
algorithm.entropy_coefficient = { low = 0.0, high = 0.02, step = 0.005 }
optimizer.name = ["adam", "sgd"]
network.hidden = [[64, 64], [128]]
network.shared = [true, false]
child.exchange_steps = { low = 10, high = 100, step = 30 }
algorithm.gae_lambda = { low = 0.9, high = 1 }
"""


def parse(toml: str) -> dict[str, Dimension]:
    return parse_space(tomllib.loads(f"[space]\n{toml}")["space"])


def test_every_kind_of_dimension() -> None:
    space = parse_space(tomllib.loads(PAPER)["space"])
    assert space == {
        "optimizer.learning_rate": Dimension(low=1e-5, high=1e-2, log=True),
        "optimizer.name": Dimension(choices=["adam", "sgd"]),
        "algorithm.batch_size": Dimension(low=2, high=100, log=True, step=1),
        "algorithm.gamma": Dimension(choices=[0.9, 0.99, 0.999]),
        "algorithm.entropy_coefficient": Dimension(low=0.0, high=0.02, step=0.005),
        "algorithm.gae_lambda": Dimension(low=0.9, high=1),
        "network.hidden": Dimension(choices=[[64, 64], [128]]),
        "network.shared": Dimension(choices=[True, False]),
        "child.exchange_steps": Dimension(low=10, high=100, step=30),
    }
    assert [key for key, dimension in space.items() if dimension.whole] == [
        "algorithm.batch_size",
        "child.exchange_steps",
    ]
    assert space["optimizer.learning_rate"].extremes == [1e-5, 1e-2]
    assert space["network.hidden"].extremes == [[64, 64], [128]]


@pytest.mark.parametrize(
    "toml",
    [
        "optimizer.learning_rate = { low = 0.1, high = 0.2 }",
        '"optimizer.learning_rate" = { low = 0.1, high = 0.2 }',
        "[space.optimizer.learning_rate]\nlow = 0.1\nhigh = 0.2",
    ],
)
def test_keys_may_be_dotted_nested_or_quoted(toml: str) -> None:
    assert parse(toml) == {"optimizer.learning_rate": Dimension(low=0.1, high=0.2)}


#: A space in TOML, and the problem of which it is told.
PROBLEMS = """
x = {} → : x: a range needs low and high
a.b = 3 → : a.b = 3: expected a range { low = …, high = … } or a list of choices
a.b = { lo = 1, hi = 2 } → : a.b.lo = 1: expected a range { low = …, high = … } or a list of choices
x = { low = 1 } → : x: a range needs low and high
x = { low = 1, high = 1 } → : x: low = 1 is not below high = 1
x = { low = 0, high = 1.0, log = true } → : x: low = 0: a logarithm needs a range above 0
x = { low = 0.0, high = inf } → : x: low = 0.0, high = inf: finite numbers are needed
x = { low = 0, high = 4, step = 0 } → : x: step = 0: above 0 and at most high − low = 4 is needed
x = { low = 0, high = 4, step = 5 } → : x: step = 5: above 0 and at most high − low = 4 is needed
x = { low = 0, high = 4, step = 0.5 } → : x: step = 0.5: between whole numbers a whole step
x = { low = 1, high = 9, step = 2, log = true } → : x: step = 2: with log only
x = [] → : x: choices = []: at least one is needed
x = [1, 2, 1] → : x: choices = [1, 2, 1]: one of them is given twice
x = [1, 1.0] → : x: choices = [1, 1.0]: one of them is given twice
x = [[1], "[1]"] → : x: choices = [[1], '[1]']: one of them is given twice
x = { choices = [1, 2], low = 1 } → : x: has choices and a range; give one of them
x = { low = 1, high = 2, lgo = true } →  lgo
x = { low = "1", high = 2 } → Expected
x = { low = true, high = 2 } → got bool
"""


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        *(line.split(" → ") for line in PROBLEMS.strip().splitlines()),
        ("", ": is empty; name a setting to vary, as optimizer.learning_rate"),
        ("x.y = [1]\n'x.y' = [2]", ": x.y: is given twice"),
    ],
)
def test_what_makes_no_sense_is_told_in_one_line(toml: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse(toml)
    text = str(error.value)
    assert text.startswith("search.space") and problem in text
    assert "\n" not in text and "`" not in text
    key = problem.removeprefix(": ").split(" ")[0].rstrip(":")
    assert key in text


def test_lists_and_tables_are_told_to_a_study_as_text() -> None:
    dimension = Dimension(choices=[[64, 64], {"a": 1}, "adam", 3, 0.5, True, [[1.5], "x"]])
    assert dimension.labels == ["[64,64]", '{"a":1}', "adam", 3, 0.5, True, '[[1.5],"x"]']
    assert [dimension.value(label) for label in dimension.labels] == dimension.choices


plain = (
    st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
choices = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=5,
)


@given(st.lists(choices, min_size=1, max_size=5))
def test_every_choice_comes_back_from_its_label_or_is_refused(values: list[Any]) -> None:
    try:
        dimension = parse_space({"x": values})["x"]
    except ConfigurationError as error:
        assert str(error).endswith("one of them is given twice")
        return
    assert len(set(dimension.labels)) == len(values)
    for value, label in zip(values, dimension.labels, strict=True):
        found = dimension.value(label)
        assert found == value and type(found) is type(value)


numbers = st.integers(-1000, 1000) | st.floats(-1000.0, 1000.0)


@given(numbers, numbers, st.booleans(), st.none() | numbers)
def test_a_range_is_taken_or_told_in_one_line(
    low: float, high: float, log: bool, step: float | None
) -> None:
    given = {"low": low, "high": high, "log": log} | ({} if step is None else {"step": step})
    try:
        dimension = parse_space({"a": {"b": given}})["a.b"]
    except ConfigurationError as error:
        assert str(error).startswith("search.space: a.b: ") and "\n" not in str(error)
        assert low >= high or (log and low <= 0) or step is not None
        return
    assert (dimension.low, dimension.high, dimension.log, dimension.step) == (low, high, log, step)
    assert low < high and (low > 0 or not log)
    assert step is None or 0 < step <= high - low
    assert dimension.whole == (isinstance(low, int) and isinstance(high, int))


@given(numbers, numbers, st.booleans(), st.integers(1, 50) | st.none())
def test_the_studys_distribution_holds_the_range(
    low: float, high: float, log: bool, step: int | None
) -> None:
    """Optuna cuts a range that is no multiple of its step.

    A search does so by itself, in silence.
    """
    optuna = pytest.importorskip("optuna")
    from genkidama.plugins.hypertrick.study import _distribution

    assume(low < high and (low > 0 or not log))
    assume(step is None or (step <= high - low and not log))
    given = {"low": low, "high": high, "log": log} | ({} if step is None else {"step": step})
    dimension = parse_space({"x": given})["x"]
    found = _distribution(dimension)
    kind = "IntDistribution" if dimension.whole else "FloatDistribution"
    assert type(found) is getattr(optuna.distributions, kind)
    assert (found.low, found.log) == (low, log)
    assert found.high <= high and high - found.high < (step or 1e-9)
