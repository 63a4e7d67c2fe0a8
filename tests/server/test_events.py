"""The lines of a history: what is written, what is understood, and that its page says so.

`python -m tests.server.test_events` writes the tables of `docs/reference/history.md` anew.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.site.settings import texts
from genkidama.server import events
from genkidama.server.events import (
    KINDS,
    AveragingChosen,
    CheckpointWritten,
    Commanded,
    Evaluated,
    Event,
    Exchange,
    Filmed,
    Joined,
    Left,
    Measures,
    PhaseReported,
    PushesRefused,
    Resumed,
    Started,
    Stopped,
    TrialAssigned,
    TrialEnded,
    TrialFailed,
    Warned,
    as_lines,
    from_line,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "history.md"

#: Events, and the lines that version 0.1.0 wrote of them.
LINES: list[tuple[Event, str]] = [
    (
        Started(time=1.5, run="first", software="0.1.0"),
        '{"time":1.5,"event":"start","run":"first","software":"0.1.0"}',
    ),
    (
        Resumed(
            time=1.5,
            run="first",
            software="0.1.0",
            file="version-0000000007.safetensors",
            version=7,
            update=3.5,
            episodes=20,
            steps=900,
            mean_return=None,
        ),
        '{"time":1.5,"event":"resume","run":"first","software":"0.1.0",'
        '"file":"version-0000000007.safetensors","version":7,"update":3.5,"episodes":20,'
        '"steps":900,"mean_return":null}',
    ),
    (
        Resumed(time=1.5, run="first", software="0.1.0", trials=4, reports=9),
        '{"time":1.5,"event":"resume","run":"first","software":"0.1.0","trials":4,"reports":9}',
    ),
    (
        Joined(time=1.5, child="pi", version=0, parameters=4610),
        '{"time":1.5,"event":"join","child":"pi","version":0,"parameters":4610}',
    ),
    (
        Joined(time=1.5, child="pi", version=0, parameters=4610, trial=3),
        '{"time":1.5,"event":"join","child":"pi","version":0,"parameters":4610,"trial":3}',
    ),
    (
        Exchange(
            time=1.5,
            child="pi",
            version=8,
            update=4.0,
            staleness=1,
            episodes=21,
            steps=950,
            mean_return=-12.25,
        ),
        '{"time":1.5,"event":"exchange","child":"pi","version":8,"update":4.0,"staleness":1,'
        '"episodes":21,"steps":950,"mean_return":-12.25}',
    ),
    (
        Exchange(
            time=1.5,
            child="pi",
            version=8,
            update=4.0,
            staleness=0,
            episodes=0,
            steps=950,
            mean_return=None,
            trial=3,
        ),
        '{"time":1.5,"event":"exchange","child":"pi","version":8,"update":4.0,"staleness":0,'
        '"episodes":0,"steps":950,"mean_return":null,"trial":3}',
    ),
    (
        AveragingChosen(
            time=1.5,
            children=7.6,
            staleness=1.9,
            alpha=0.25,
            lanes=4,
            minibatch_size=32,
            learning_rate=0.002,
        ),
        '{"time":1.5,"event":"averaging","children":7.6,"staleness":1.9,"alpha":0.25,"lanes":4,'
        '"minibatch_size":32,"learning_rate":0.002}',
    ),
    (
        PushesRefused(time=1.5, child="", code="silent", reason="no hello within 10 s"),
        '{"time":1.5,"event":"refused","child":"","code":"silent","reason":"no hello within 10 s"}',
    ),
    (
        Left(time=1.5, child="pi", reason="stopped"),
        '{"time":1.5,"event":"leave","child":"pi","reason":"stopped"}',
    ),
    (
        CheckpointWritten(time=1.5, version=8, update=4.0, file="version-0000000008.safetensors"),
        '{"time":1.5,"event":"checkpoint","version":8,"update":4.0,'
        '"file":"version-0000000008.safetensors"}',
    ),
    (
        Stopped(time=1.5, reason="500 exchanges a child done", version=8),
        '{"time":1.5,"event":"stop","reason":"500 exchanges a child done","version":8}',
    ),
    (Stopped(time=1.5, reason="SIGTERM"), '{"time":1.5,"event":"stop","reason":"SIGTERM"}'),
    (
        Commanded(time=1.5, action="extend", by="anna", limits={"steps": 15}),
        '{"time":1.5,"event":"command","action":"extend","by":"anna","limits":{"steps":15}}',
    ),
    (
        Filmed(time=1.5, version=8, file="version-0000000008.mp4"),
        '{"time":1.5,"event":"film","version":8,"file":"version-0000000008.mp4"}',
    ),
    (
        Warned(time=1.5, reason="no space left"),
        '{"time":1.5,"event":"warning","reason":"no space left"}',
    ),
    (
        Warned(time=1.5, trial=3, reason="no episode ended"),
        '{"time":1.5,"event":"warning","trial":3,"reason":"no episode ended"}',
    ),
    (
        TrialAssigned(time=1.5, trial=3, child="pi", phase=1, params={"algorithm.gamma": 0.9}),
        '{"time":1.5,"event":"trial","trial":3,"child":"pi","phase":1,'
        '"params":{"algorithm.gamma":0.9}}',
    ),
    (
        TrialFailed(time=1.5, trial=3, child="pi", reason="no memory"),
        '{"time":1.5,"event":"trial_failed","trial":3,"child":"pi","reason":"no memory"}',
    ),
    (
        PhaseReported(
            time=1.5,
            trial=3,
            phase=1,
            node="pi",
            start=10.0,
            end=20.5,
            metric=None,
            order=2,
            worse=1,
            mode="select",
            verdict="stop",
            steps=3000,
            episodes=60,
            report=7,
        ),
        '{"time":1.5,"event":"report","trial":3,"phase":1,"node":"pi","start":10.0,"end":20.5,'
        '"metric":null,"order":2,"worse":1,"mode":"select","verdict":"stop","steps":3000,'
        '"episodes":60,"report":7}',
    ),
    (
        TrialEnded(time=1.5, trial=3, state="stopped", reason="in the lower part"),
        '{"time":1.5,"event":"trial_end","trial":3,"state":"stopped","reason":"in the lower part"}',
    ),
    (
        Evaluated(
            time=1.5,
            mean=2.0,
            std=0.5,
            minimum=1.0,
            quantiles={"5%": 1.0, "95%": 3.0},
            solved=None,
            threshold=None,
            episodes=4,
            greedy=False,
            seed=7,
            checkpoint="best.safetensors",
            mean_return=2.0,
        ),
        '{"time":1.5,"event":"evaluation","mean":2.0,"std":0.5,"minimum":1.0,'
        '"quantiles":{"5%":1.0,"95%":3.0},"solved":null,"threshold":null,"episodes":4,'
        '"greedy":false,"seed":7,"checkpoint":"best.safetensors","mean_return":2.0}',
    ),
]

#: Measures had the name of their backend in version 0.1.0.
MEASURED = Measures(time=1.5, backend="ga3c", child="pi", trial=3, figures={"pps": 9.0, "lag": 1.5})
NEW_MEASURED = (
    '{"time":1.5,"event":"measures","backend":"ga3c","child":"pi","trial":3,"pps":9.0,"lag":1.5}'
)


def test_every_kind_is_among_the_lines() -> None:
    assert {type(event) for event, _ in LINES} | {Measures} == set(KINDS.values())
    assert {kind for kind in vars(events).values() if isinstance(kind, type)} >= {*KINDS.values()}
    assert set(Event.__subclasses__()) == set(KINDS.values())


@pytest.mark.parametrize(("event", "line"), LINES)
def test_a_line_is_what_it_was_to_the_byte_and_says_the_same_again(event: Event, line: str) -> None:
    assert as_lines([event]).decode() == line + "\n"
    assert from_line(line) == from_line(json.loads(line)) == event


def test_measures_name_their_backend_and_no_other_kind_is_taken_for_them() -> None:
    assert as_lines([MEASURED]).decode() == NEW_MEASURED + "\n"
    assert from_line(NEW_MEASURED) == MEASURED
    assert from_line('{"time":1.5,"event":"ga3c","child":"pi","pps":271.0}') is None


names = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=32)


@given(st.dictionaries(names, st.floats(-1e30, 1e30)), st.none() | st.integers(0, 9))
def test_measures_are_read_as_they_were_written(
    figures: dict[str, float], trial: int | None
) -> None:
    figures = {
        name: value for name, value in figures.items() if name not in Measures.__struct_fields__
    }
    event = Measures(time=1.0, backend="mine:Backend", child="pi", figures=figures)
    if trial is not None:
        event.trial = trial
    assert from_line(as_lines([event])) == event


def test_a_figure_never_hides_a_field() -> None:
    event = Measures(time=1.0, backend="ga3c", child="pi", figures={"backend": 1.0, "pps": 2.0})
    assert json.loads(as_lines([event])) == {
        "time": 1.0,
        "event": "measures",
        "backend": "ga3c",
        "child": "pi",
        "pps": 2.0,
    }


@pytest.mark.parametrize(
    "line",
    [
        '{"time":1.0,"event":"something new"}',
        '{"time":1.0,"event":"something new","child":"pi","why":"because"}',
        '{"time":1.0}',
        '{"time":1.0,"event":{"join":1}}',
        "{}",
    ],
)
def test_kinds_that_are_not_known_are_passed_over(line: str) -> None:
    assert from_line(line) is None


@pytest.mark.parametrize(("event", "line"), LINES)
def test_fields_that_are_not_known_are_passed_over(event: Event, line: str) -> None:
    assert from_line(json.loads(line) | {"something_new": [1]}) == event


def test_a_line_stands_for_one_refusal_unless_it_says_how_many() -> None:
    refused = PushesRefused(time=1.5, child="pi", code="finite", reason="NaN")
    assert refused.times == 1
    assert msgspec.structs.replace(refused, count=7).times == 7


@pytest.mark.parametrize(
    "line",
    [
        "{torn",
        "[1]",
        '{"time":1.0,"event":"join"}',
        '{"event":"warning","reason":"late"}',
        b'{"time":1.0,"event":"\xff"}',
        pytest.param('{"event":' + 100_000 * "[", id="deep"),
    ],
)
def test_what_is_no_line_of_a_history_is_an_error(line: str | bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        from_line(line)


# The page.


def kind_of_value(annotation: Any) -> str:
    """A field's type as JSON calls it."""
    text = str(annotation)
    text = re.sub(r"^<class '(\w+)'>$", r"\1", text).removeprefix("typing.")
    words = {
        "str": "text",
        "int": "integer",
        "float": "number",
        "bool": "true, false",
        "dict": "object",
        "None": "null",
    }
    parts = [
        re.sub(r"\[.*", "", part)
        for part in re.split(r" \| (?![^\[]*\])", text)
        if "UnsetType" not in part
    ]
    return ", ".join(words[part.replace("NoneType", "None")] for part in parts)


def tables() -> str:
    """A heading and a table for each kind."""
    base = texts(Event)
    found = []
    for name, kind in KINDS.items():
        told = texts(kind)
        found += [f"### `{name}`", "", told[""], "", "| field | | |", "|---|---|---|"]
        for field in msgspec.structs.fields(kind):
            if field.name in base:
                continue
            value = kind_of_value(inspect.get_annotations(kind, eval_str=True)[field.name])
            shown = "…" if (kind, field.name) == (Measures, "figures") else f"`{field.name}`"
            optional = field.default is msgspec.UNSET
            found.append(f"| {shown} | {value}{', or absent' * optional} | {told[field.name]} |")
        found.append("")
    return "\n".join(found)


def with_tables(page: str) -> str:
    """The page with what stands between its two comments made anew."""
    begin, end = "<!-- made from genkidama/server/events.py -->\n", "<!-- end -->"
    head, rest = page.split(begin)
    return f"{head}{begin}\n{tables()}\n{end}{rest.split(end)[1]}"


def test_every_field_is_explained() -> None:
    for kind in KINDS.values():
        known = texts(kind)
        assert known[""], kind
        own = set(kind.__struct_fields__) - {"time", "event"}
        assert own <= known.keys() and all(known[name] for name in own), kind


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page, "write it anew: python -m tests.server.test_events"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
