"""Plain values become sections; one line tells a mistake, its place and what is allowed."""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.decoding import (
    Count,
    Finite,
    Fraction,
    Meta,
    Natural,
    NotNegative,
    Positive,
    Section,
    convert,
    name_of_script,
    parse_setting,
    parse_settings,
    plug,
)
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError


class Wheel(Section, frozen=True):
    size: Natural = 28


class Bicycle(Section, frozen=True):
    colour: Literal["red", "blue"] = "red"
    gears: Natural | Literal["none"] = "none"
    brake: Annotated[str, plug("rim", "disc")] = "rim"
    plate: Annotated[str, Meta(pattern=r"^[A-Z]+\Z", extra={"expected": "capital letters"})] = "A"
    load: Fraction = 0.0
    wheels: tuple[Wheel, ...] = ()
    spare: Wheel | None = None
    notes: dict[str, Any] = {}


def wrong(**settings: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        convert(settings, Bicycle, "shed.toml")
    return str(caught.value)


def test_what_is_right_arrives() -> None:
    settings = {"colour": "blue", "gears": 7, "wheels": [{"size": 26}, {}], "spare": {"size": 20}}
    assert convert(settings, Bicycle, "shed.toml") == Bicycle(
        colour="blue", gears=7, wheels=(Wheel(size=26), Wheel()), spare=Wheel(size=20)
    )


def test_what_is_absent_has_its_default() -> None:
    assert convert({}, Bicycle, "shed.toml") == Bicycle()


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"colour": "green"}, "colour = 'green': expected one of 'red', 'blue'"),
        ({"gears": "many"}, "gears = 'many': expected one of 'none', or int >= 1"),
        ({"gears": 0}, "gears = 0: expected int >= 1"),
        ({"load": 1.5}, "load = 1.5: expected float <= 1.0"),
        ({"plate": "a1"}, "plate = 'a1': expected capital letters"),
        (
            {"brake": "drum"},
            "brake = 'drum': expected one of 'rim', 'disc', or an import string 'module:Name'",
        ),
        ({"wheels": [{}, {"size": "big"}]}, "wheels[1].size = 'big': expected int, got str"),
        ({"spare": {"size": 0}}, "spare.size = 0: expected int >= 1"),
        ({"spare": 3}, "spare = 3: expected a table, got int"),
        ({"notes": "none"}, "notes = 'none': expected a table, got str"),
    ],
)
def test_a_wrong_value_is_told_with_its_place_and_what_is_allowed(
    settings: dict[str, Any], line: str
) -> None:
    assert wrong(**settings) == f"shed.toml: {line}"


def test_an_unknown_key_is_told_with_the_nearest_or_all_that_there_are() -> None:
    known = "brake, colour, gears, load, notes, plate, spare, wheels"
    assert wrong(color="red") == (
        "shed.toml: color = 'red': no such setting; did you mean 'colour'?"
    )
    assert wrong(xyz=1) == f"shed.toml: xyz = 1: no such setting; known here: {known}"
    assert wrong(spare={"siz": 3}) == (
        "shed.toml: spare.siz = 3: no such setting; did you mean 'size'?"
    )


def test_a_key_with_a_line_break_is_told_in_one_line() -> None:
    assert wrong(**{"a\nb": 1}).startswith("shed.toml: 'a\\nb' = 1: no such setting; known here: ")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=6,
    ),
    st.sampled_from(["colour", "gears", "brake", "plate", "load", "wheels", "spare", "notes", "x"]),
)
def test_any_value_is_taken_or_told_in_one_line(value: Any, key: str) -> None:
    try:
        convert({key: value}, Bicycle, "shed.toml")
    except ConfigurationError as error:
        assert str(error).startswith(f"shed.toml: {key}")
        assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("kind", "allowed", "refused"),
    [
        (Fraction, (0.0, 0.5, 1.0), (-1e-9, 1.0 + 1e-9)),
        (Positive, (1e-30, 1e30), (0.0, -1.0, 2e30)),
        (NotNegative, (0.0, 1e30), (-1e-9, 2e30)),
        (Finite, (-1e30, 0.0, 1e30), (-2e30, 2e30)),
        (Natural, (1, 10**9), (0, -1)),
        (Count, (0, 10**9), (-1,)),
    ],
    ids=["Fraction", "Positive", "NotNegative", "Finite", "Natural", "Count"],
)
def test_a_range_ends_where_it_says(
    kind: Any, allowed: tuple[float, ...], refused: tuple[float, ...]
) -> None:
    class Holder(Section, frozen=True):
        __annotations__ = {"value": kind}

    for value in allowed:
        assert convert({"value": value}, Holder, "x").value == value
    for value in (*refused, float("nan")):
        with pytest.raises(ConfigurationError, match=re.escape(f"x: value = {value!r}: expected ")):
            convert({"value": value}, Holder, "x")


@pytest.mark.parametrize("name", ["rim", "disc", "mine:Brake", "my.parts_2:_Brake"])
def test_a_plug_is_one_of_ours_or_an_import_string(name: str) -> None:
    assert convert({"brake": name}, Bicycle, "x").brake == name


@pytest.mark.parametrize(
    "name", ["", "rims", "mine:", ":Brake", "my parts:Brake", "rim\n", "a:b:c"]
)
def test_what_is_no_plug(name: str) -> None:
    assert "expected one of 'rim', 'disc', or an import string" in wrong(brake=name)


def test_a_class_or_a_function_becomes_its_import_string() -> None:
    assert Bicycle(brake=OrderedDict).brake == "collections:OrderedDict"  # type: ignore[arg-type]
    assert convert({"brake": re.compile}, Bicycle, "shed.toml").brake == "re:compile"
    line = "no other process can import it; define it at the top of a module, as a class or by def"
    assert wrong(brake=lambda: 1) == f"shed.toml: brake = <lambda>: {line}"


@pytest.mark.parametrize(
    ("file", "spec", "name"),
    [
        ("/home/me/mine.py", None, "mine"),
        ("/home/me/my-own.py", None, ""),
        ("/home/me/bin/genkidama", None, ""),
        (None, None, ""),
        ("/home/me/package/mine.py", "package.mine", "package.mine"),
    ],
)
def test_a_class_of_the_program_itself_is_named_as_others_import_it(
    file: str | None, spec: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    main.__file__ = file
    main.__spec__ = None if spec is None else ModuleSpec(spec, None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    mine = type("Mine", (), {"__module__": "__main__"})
    assert name_of_script() == name
    assert Bicycle(brake=mine).brake == f"{name or '__main__'}:Mine"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("child.exchange=free", "free"),
        ('child.exchange="free"', "free"),
        ("child.cores=4", 4),
        ("parent.alpha=0.9", 0.9),
        (" optimizer.learning_rate = 1e-3 ", 1e-3),
        ("network.shared=true", True),
        ("network.hidden=[64, 64]", [64, 64]),
        ("environment.options={wind = 3}", {"wind": 3}),
        ("environment.id=LunarLander-v3", "LunarLander-v3"),
        ("environment.id=my.module:make", "my.module:make"),
        ("name=2024-01-31", "2024-01-31"),
        ("name=a=b", "a=b"),
        ("name=", ""),
        ("name=" + "9" * 5000, "9" * 5000),
        ("name=" + "[" * 5000, "[" * 5000),
        ("parent.alpha=1\nseed = 3", "1\nseed = 3"),
    ],
)
def test_values(text: str, value: object) -> None:
    key, found = parse_setting(text)
    assert key == text.partition("=")[0].strip()
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    "text", ["child.exchange", "=3", "child..exchange=free", ".x=1", "a b=1", ""]
)
def test_what_is_no_setting(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected key=value with a dotted key"):
        parse_setting(text)


def test_they_fit_the_experiment() -> None:
    changed = Experiment().with_settings(
        parse_settings(["seed=1", "child.exchange=free", "seed=2"])
    )
    assert (changed.seed, changed.child.exchange) == (2, "free")


def test_a_signal_that_comes_meanwhile_is_heard() -> None:
    """Msgspec loses an exception that a signal raises while it asks the hash of a type, if that is
    code of Python's. It asks none, once it knows the types."""
    settings = Experiment().to_dict()
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name))
    try:
        Experiment.from_dict(settings)
    finally:
        sys.setprofile(None)
    assert "__post_init__" in called and "__hash__" not in called
