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

from genkidama.config import decoding
from genkidama.config.decoding import (
    _ELSEWHERE,
    Count,
    Finite,
    Fraction,
    Meta,
    Natural,
    NotNegative,
    Positive,
    Section,
    check_least,
    convert,
    name_of_script,
    parse_setting,
    parse_settings,
    plug,
)
from genkidama.config.experiment import Experiment
from genkidama.config.sections import Algorithm, Network, Stop
from genkidama.errors import ConfigurationError


class Wheel(Section, frozen=True):
    size: Natural = 28
    tyre: Literal["road", "mud"] = "road"


class Bicycle(Section, frozen=True):
    colour: Literal["red", "blue"] = "red"
    gears: Natural | Literal["none"] = "none"
    brake: Annotated[str, plug("rim", "disc")] = "rim"
    plate: Annotated[str, Meta(pattern=r"^[A-Z]+\Z", extra={"expected": "capital letters"})] = "A"
    load: Fraction = 0.0
    wheels: tuple[Wheel, ...] = ()
    spare: Wheel | None = None
    lamps: tuple[Literal["front", "back"], ...] = ()
    notes: dict[str, Any] = {}


class Frame(Section, frozen=True):
    number: str


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
        ({"gears": 1.5}, "gears = 1.5: expected one of 'none', or int >= 1"),
        ({"load": 1.5}, "load = 1.5: expected float <= 1.0"),
        ({"plate": "a1"}, "plate = 'a1': expected capital letters"),
        (
            {"brake": "drum"},
            "brake = 'drum': expected one of 'rim', 'disc', or an import string 'module:Name'",
        ),
        (
            {"brake": "redis://:secret@host:1"},
            "brake = 'redis://…@host:1': expected one of 'rim', 'disc', or an import string "
            "'module:Name'",
        ),
        (
            {"brake": str.join},
            "brake = <method 'join' of 'str' objects>: expected str, got method_descriptor",
        ),
        ({"lamps": ["front", "side"]}, "lamps[1] = 'side': expected one of 'front', 'back'"),
        ({"wheels": [{}, {"size": "big"}]}, "wheels[1].size = 'big': expected int, got str"),
        ({"wheels": [{"tyre": "ice"}]}, "wheels[0].tyre = 'ice': expected one of 'road', 'mud'"),
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
    known = "brake, colour, gears, lamps, load, notes, plate, spare, wheels"
    assert wrong(color="red") == (
        "shed.toml: color = 'red': no such setting; did you mean 'colour'?"
    )
    assert wrong(xyz=1) == f"shed.toml: xyz = 1: no such setting; known here: {known}"
    assert wrong(spare={"siz": 3}) == (
        "shed.toml: spare.siz = 3: no such setting; did you mean 'size'?"
    )
    for name in ("size", "siz"):
        assert wrong(**{name: 3}) == (
            f"shed.toml: {name} = 3: no such setting; did you mean 'spare.size'?"
        )
    # Of two that are near, the nearest.
    assert wrong(loads=3) == "shed.toml: loads = 3: no such setting; did you mean 'load'?"


def test_a_setting_that_is_needed_is_told() -> None:
    with pytest.raises(ConfigurationError) as caught:
        convert({}, Frame, "shed.toml")
    assert str(caught.value) == ("shed.toml: top level = {}: object missing required field number")


def nested(levels: int) -> Any:
    """Lists, tables and tuples in each other."""
    value: Any = 0
    for level in range(levels):
        value = ([value], {"deeper": value}, (value,))[level % 3]
    return value


def test_tables_and_lists_are_in_each_other_64_times_at_most() -> None:
    assert convert({"notes": {"deep": nested(63)}}, Bicycle, "x").notes == {"deep": nested(63)}
    assert wrong(notes={"deep": nested(64)}) == "shed.toml: not settings: it is nested too deeply"


@pytest.mark.parametrize(("name", "meant"), _ELSEWHERE.items())
def test_a_name_of_other_libraries_leads_to_a_setting_that_exists(name: str, meant: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Experiment.from_dict({name: 1}, source="x")
    assert str(caught.value) == f"x: {name} = 1: no such setting; did you mean {meant!r}?"
    section, _, key = meant.partition(".")
    assert hasattr(Experiment().section(section), key)


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
    st.sampled_from([*Bicycle.__struct_fields__, "x"]),
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
    assert convert({"spare": {"tyre": "mud"}, "brake": re.compile}, Bicycle, "x") == Bicycle(
        spare=Wheel(tyre="mud"), brake="re:compile"
    )
    given = {"spare": {"tyre": "mud", "spokes": [{"of": re.compile}, 2]}}
    assert decoding._named(given)["spare"]["spokes"] == [{"of": "re:compile"}, 2]
    line = "no other process can import it; define it at the top of a module, as a class or by def"
    assert wrong(brake=lambda: 1) == f"shed.toml: brake = <lambda>: {line}"


@pytest.mark.parametrize(
    ("file", "spec", "name"),
    [
        ("/home/me/mine.py", None, "mine"),
        ("/home/me/my-own.py", None, ""),
        (r"C:\me\mine.py", None, "mine"),
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
    theirs = type("Disc", (), {"__module__": "Theirs"})
    assert Bicycle(brake=theirs).brake == "Theirs:Disc"  # type: ignore[arg-type]


def test_a_wrong_value_fails_where_it_is_written() -> None:
    for make, said in (
        (lambda: Algorithm(gamma=7.0), r"^Algorithm: gamma = 7.0: expected float <= 1.0$"),
        (lambda: Network(hidden=[64, 0]), r"^Network: hidden\[1\] = 0: expected int >= 1$"),
        (lambda: Experiment(stop=3), r"^Experiment: stop = 3: expected"),  # type: ignore[arg-type]
        (lambda: Stop(steps=0), r"^Stop: steps = 0: expected int >= 1$"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            make()
    assert Network(hidden=[64, 64]).hidden == (64, 64)  # type: ignore[arg-type]
    assert isinstance(Algorithm(gamma=1).gamma, float)


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        (Algorithm, "learning_rate", "Optimizer.learning_rate"),
        (Algorithm, "gama", "gamma"),
        (Algorithm, "lr", "Optimizer.learning_rate"),
        (Experiment, "gamma", "Algorithm.gamma"),
        (Algorithm, "total_timesteps", "Stop.steps"),
        (Wheel, "siz", "size"),
    ],
)
def test_a_program_is_told_which_setting_it_means(kind: Any, name: str, meant: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        kind(**{name: 3})
    line = f"{kind.__name__}: {name} = 3: no such setting; did you mean {meant!r}?"
    assert str(caught.value) == line


def test_of_several_settings_the_one_that_is_unknown_is_told() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Wheel(size=26, spokes=36, rays=1)  # type: ignore[call-arg]
    assert str(caught.value) == ("Wheel: spokes = 36: no such setting; known here: size, tyre")


def test_a_program_is_told_no_setting_of_its_own_sections() -> None:
    with pytest.raises(ConfigurationError, match=r"no such setting; known here: size, tyre$"):
        Wheel(xyz="red")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "make", [lambda: Frame(), lambda: Wheel(1, "mud", 3)], ids=["absent", "no name"]
)
def test_another_mistake_in_a_call_is_pythons(make: Any) -> None:
    with pytest.raises(TypeError):
        make()


def test_numbers_of_a_call_are_checked_if_they_are_given() -> None:
    check_least(games=1, seconds=None, steps=2)
    check_least(0, games=0.0)
    for least, value, line in (
        (1, 0, "steps = 0: at least 1 is needed"),
        (1, 0.5, "steps = 0.5: at least 1 is needed"),
        (0, -1, "steps = -1: at least 0 is needed"),
        (2.5, 2, "steps = 2: at least 2.5 is needed"),
    ):
        with pytest.raises(ConfigurationError, match=f"^{re.escape(line)}$"):
            check_least(least, games=None, seconds=9, steps=value)
    with pytest.raises(ConfigurationError, match=r"^games = 0\.5: at least 1 is needed$"):
        check_least(games=0.5)


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
