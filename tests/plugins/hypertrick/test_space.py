"""Search spaces as TOML says them: what is understood, what is refused, and with which words."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.space import Dimension, parse_space

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
        "optimizer = { learning_rate = { low = 0.1, high = 0.2 } }",
        '"optimizer.learning_rate" = { low = 0.1, high = 0.2 }',
        "[space.optimizer]\nlearning_rate = { low = 0.1, high = 0.2 }",
        "[space.optimizer.learning_rate]\nlow = 0.1\nhigh = 0.2",
        'optimizer = { "learning_rate" = { high = 0.2, low = 0.1 } }',
    ],
)
def test_keys_may_be_dotted_nested_or_quoted(toml: str) -> None:
    assert parse(toml) == {"optimizer.learning_rate": Dimension(low=0.1, high=0.2)}


def test_keys_may_be_deep() -> None:
    assert parse("environment.options.wind.power = [1, 2]") == {
        "environment.options.wind.power": Dimension(choices=[1, 2])
    }


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        (
            "",
            ": is empty; name a setting to vary, "
            "as optimizer.learning_rate = { low = 1e-5, high = 1e-2 }",
        ),
        ("x = {}", ": x: a range needs low and high"),
        ("a.b = 3", ": a.b = 3: expected a range { low = …, high = … } or a list of choices"),
        (
            'a.b = "adam"',
            ": a.b = 'adam': expected a range { low = …, high = … } or a list of choices",
        ),
        (
            "a.b = { lo = 1, hi = 2 }",
            ": a.b.lo = 1: expected a range { low = …, high = … } or a list of choices",
        ),
        ("x = { low = 1 }", ": x: a range needs low and high"),
        ("x = { high = 1, log = true }", ": x: a range needs low and high"),
        ("x = { low = 2.0, high = 1.0 }", ": x: low = 2.0 is not below high = 1.0"),
        ("x = { low = 1, high = 1 }", ": x: low = 1 is not below high = 1"),
        (
            "x = { low = 0, high = 1.0, log = true }",
            ": x: low = 0: a logarithm needs a range above 0",
        ),
        (
            "x = { low = -1.0, high = 1.0, log = true }",
            ": x: low = -1.0: a logarithm needs a range above 0",
        ),
        ("x = { low = 0.0, high = inf }", ": x: low = 0.0, high = inf: finite numbers are needed"),
        ("x = { low = nan, high = 1.0 }", ": x: low = nan, high = 1.0: finite numbers are needed"),
        (
            "x = { low = 0, high = 4, step = 0 }",
            ": x: step = 0: above 0 and at most high − low = 4 is needed",
        ),
        (
            "x = { low = 0, high = 4, step = -1 }",
            ": x: step = -1: above 0 and at most high − low = 4 is needed",
        ),
        (
            "x = { low = 0, high = 4, step = 5 }",
            ": x: step = 5: above 0 and at most high − low = 4 is needed",
        ),
        (
            "x = { low = 0, high = 4, step = nan }",
            ": x: step = nan: above 0 and at most high − low = 4 is needed",
        ),
        (
            "x = { low = 0, high = 4, step = 0.5 }",
            ": x: step = 0.5: between whole numbers a whole step is needed",
        ),
        (
            "x = { low = 1, high = 9, step = 2, log = true }",
            ": x: step = 2: with log only whole numbers in steps of 1 are possible",
        ),
        (
            "x = { low = 0.1, high = 9.0, step = 0.1, log = true }",
            ": x: step = 0.1: with log only whole numbers in steps of 1 are possible",
        ),
        ("x = []", ": x: choices = []: at least one is needed"),
        ("x = { choices = [] }", ": x: choices = []: at least one is needed"),
        ("x = [1, 2, 1]", ": x: choices = [1, 2, 1]: one of them stands there twice"),
        ("x = [1, 1.0]", ": x: choices = [1, 1.0]: one of them stands there twice"),
        ("x = [[1], [2], [1]]", ": x: choices = [[1], [2], [1]]: one of them stands there twice"),
        ('x = [[1], "[1]"]', ": x: choices = [[1], '[1]']: one of them stands there twice"),
        ("x = { choices = [1, 2], low = 1 }", ": x: has choices and a range; give one of them"),
        ("x = { choices = [1, 2], log = true }", ": x: has choices and a range; give one of them"),
        ("x = { low = 1, high = 2, lgo = true }", " lgo"),
        ('x = { low = "1", high = 2 }', "Expected"),
        ("x = { low = true, high = 2 }", "got bool"),
        ("x = { low = 1, high = 2, log = 1 }", "Expected bool"),
        ("x = { choices = 3 }", "Expected array"),
        ("x.y = [1]\n'x.y' = [2]", ": x.y: stands there twice"),
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


def test_the_source_is_named_first() -> None:
    with pytest.raises(ConfigurationError, match=r"^cart\.toml: search\.space: x: a range needs"):
        parse_space({"x": {}}, "cart.toml: search.space")


def test_lists_and_tables_are_told_to_a_study_as_text() -> None:
    dimension = Dimension(choices=[[64, 64], {"a": 1}, "adam", 3, 0.5, True, [[1.5], "x"]])
    assert dimension.labels == ["[64,64]", '{"a":1}', "adam", 3, 0.5, True, '[[1.5],"x"]']
    assert [dimension.value(label) for label in dimension.labels] == dimension.choices


def test_the_value_of_a_range_is_its_own_label() -> None:
    assert Dimension(low=1, high=3).value(2) == 2
    assert Dimension(low=1, high=3).labels == []


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
        assert str(error).endswith("one of them stands there twice")
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

    assume(
        low < high and (low > 0 or not log) and (step is None or (step <= high - low and not log))
    )
    dimension = parse_space(
        {"x": {"low": low, "high": high, "log": log} | ({} if step is None else {"step": step})}
    )["x"]
    found = _distribution(dimension)
    assert isinstance(
        found,
        optuna.distributions.IntDistribution
        if dimension.whole
        else optuna.distributions.FloatDistribution,
    )
    assert (found.low, found.log) == (low, log)
    assert found.high <= high and high - found.high < (step or 1e-9)
