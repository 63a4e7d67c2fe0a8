"""The page's modules: what they say of numbers and times, and how they put messages together."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from functools import cmp_to_key
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.made_up import STATIC
from genkidama.plugins.dashboard.routes import _JOINING
from genkidama.runs.status import fold
from genkidama.server.events import Commanded, Event, Joined, Left
from tests.plugins.dashboard.node import Node, in_node
from tests.stories import BEGAN, as_json, began, measured, pushed, told

TEXTS = sorted(path for path in STATIC.iterdir() if path.suffix in (".js", ".css", ".html"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with in_node(
        tmp_path_factory.mktemp("modules"),
        ("fold", "scale", "words"),
        'import { fold } from "./fold.mjs";',
        'import * as scale from "./scale.mjs";',
        'import * as words from "./words.mjs";',
    ) as node:
        yield node


@pytest.fixture
def scale(node: Node) -> Callable[..., Any]:
    """Calls a function of the module `scale` by its name."""
    return lambda name, *given: node(f"return scale.{name}(...data.given);", given=given)


def test_a_range_leaves_outliers_out_and_nothing_else(scale: Callable[..., Any]) -> None:
    usual = [float(number % 7) for number in range(40)]
    assert scale("usual", [*usual, 5000.0]) == [0.0, 6.0]
    assert scale("usual", [*usual, 9.0, -9.0]) == [-9.0, 9.0]
    assert scale("usual", [1.0, 5000.0]) == [1.0, 5000.0]  # too few to say
    assert scale("usual", []) is None


def test_values_of_any_kind_have_an_order_and_nothing_comes_last(scale: Callable[..., Any]) -> None:
    def order(*values: Any, direction: int = 1) -> list[Any]:
        def compare(a: Any, b: Any) -> int:
            return int(np.sign(scale("compare", a, b, direction)))

        return sorted(values, key=cmp_to_key(compare))

    assert order(10, None, 9.5, True) == [True, 9.5, 10, None]
    assert order(10, None, 9.5, direction=-1) == [10, 9.5, None]
    assert order("pi-10", "pi-9") == ["pi-9", "pi-10"]
    assert order([256], [64, 64], [8]) == [[8], [64, 64], [256]]
    assert order("auto", 4, 16) == [4, 16, "auto"]
    assert order({"name": "ppo"}, {"name": "a3c"}) == [{"name": "a3c"}, {"name": "ppo"}]


SAID = [
    ("figure", (112.4,), "112"),
    ("figure", (0.00351,), "0.00351"),
    ("figure", (-0.00002,), "−2.0e−5"),
    ("figure", (None,), "–"),
    ("figure", (0.99994,), "0.9999"),
    ("figure", (1,), "1"),
    ("score", (-180.25,), "−180.3"),
    ("score", (1234.5,), "1,234.5"),
    ("brief", (267184,), "267.2K"),
    ("tick", (1_250_000, 250_000), "1.25M"),
    ("tick", (-7500, 2500), "−7.5K"),
    ("tick", (499.5, 0.5), "499.5"),
    ("tick", (12_025, 5), "12,025"),
    ("tick", (3 * 0.1, 0.1), "0.3"),
    ("tick", (-0.0, 0.1), "0"),
    ("percent", (0.999,), "99%"),
    ("duration", (59.9,), "0:59"),
    ("duration", (3723,), "1:02:03"),
    ("ago", (1.2,), "now"),
    ("ago", (34.4,), "34 s"),
    ("ago", (7200,), "2 h"),
    ("bytes", (6123456,), "6.1 MB"),
    ("bytes", (19123456,), "19 MB"),
    ("milliseconds", (0.0123,), "12.3 ms"),
    ("many", (1, "child", "children"), "1 child"),
    ("many", (2, "child", "children"), "2 children"),
    ("named", ("approximate_kl",), "KL"),
    ("named", ("grad_norm",), "grad norm"),
    ("measured", ("entropy", 1.3863), "1.39 nats"),
    ("measured", ("clip_fraction", 0.1234), "12.3%"),
    ("measured", ("my_own", None), "–"),
    ("refused", ("token",), "a wrong token, or none"),
]


def test_numbers_are_said_as_people_read_them(node: Node) -> None:
    body = "return data.all.map(([name, given]) => words[name](...given));"
    found = node(body, all=[(name, given) for name, given, _ in SAID])
    assert found == [said for _, _, said in SAID]


def test_a_moment_has_its_date_unless_that_is_todays(node: Node) -> None:
    now, before = time.time(), BEGAN
    said = [
        time.strftime(form, time.localtime(at))
        for at, form in ((now, "%H:%M:%S"), (before, "%d %b %Y, %H:%M:%S"))
    ]
    assert node("return data.all.map(words.clock);", all=[now, before]) == said


def test_an_axis_names_round_values_within_its_range(scale: Callable[..., Any]) -> None:
    assert scale("ticks", -200, 212, scale("step", 412, 6)) == [-200, -100, 0, 100, 200]
    assert scale("timeStep", 95, 9) == 15
    assert scale("nearest", [[0, 5], [1, 5], [4, 5]], 2.4) == 1
    assert len(scale("evenly", [[n, n] for n in range(1000)], 24)) == 24


NAMES = st.sampled_from(["a", "b", "c"])

#: What may happen, one a second; what goes before is that all three have joined.
HAPPENED = st.lists(
    st.tuples(st.sampled_from(["exchange", "measures", "leave", "join", "extend", "tell"]), NAMES),
    min_size=3,
    max_size=30,
)


def event(kind: str, name: str, second: int) -> Event:
    match kind:
        case "exchange":
            return pushed(second, name)
        case "measures":
            return measured(name, second, kl=0.5 * second)
        case "leave":
            return Left(time=BEGAN + 1 + second, child=name, reason="gone")
        case "extend":
            limits = {"seconds": 100 * second}
            return Commanded(time=BEGAN + 1 + second, action=kind, by=name, limits=limits)
    return Joined(time=BEGAN + 1 + second, child=name, version=1, parameters=4)


@given(story=HAPPENED)
@settings(max_examples=20)
def test_a_browser_puts_changes_together_as_python_does(
    node: Node, story: list[tuple[str, str]]
) -> None:
    source = told(began("a", "b", "c"))
    messages = [as_json(source.document(BEGAN + 1))]
    for second, (kind, name) in enumerate([*story, ("tell", "a")], 1):
        if kind == "tell":
            messages.append(as_json(source.change(BEGAN + 1 + second)))
        else:
            source.take([event(kind, name, second)])
    expected = None
    for message in messages:
        expected = fold(expected, message)
    body = "return data.all.reduce((before, message) => fold(before, message), null);"
    found = node(body, all=messages)
    assert expected is not None
    assert expected["settings"] == as_json(source.document(BEGAN))["settings"]
    found.pop("gone", None)
    expected.pop("gone", None)
    assert found == expected


def test_a_curve_without_new_rows_is_the_same_and_is_not_drawn_anew(node: Node) -> None:
    source = told([*began("a"), pushed(1)])
    messages = [as_json(source.snapshot(BEGAN + 1)), as_json(source.change(BEGAN + 2))]
    body = """
    const [before, change] = data.messages;
    return fold(before, change).learning.curve === before.learning.curve;
    """
    assert node(body, messages=messages)


def imported(name: str) -> set[str]:
    """A module, and all that it imports."""
    found, rest = set[str](), {name}
    while rest:
        found.add(one := rest.pop())
        rest |= set(re.findall(r'from "\./(.+\.js)"', (STATIC / one).read_text())) - found
    return found


def test_the_page_is_made_of_files_of_its_own_and_of_nothing_inline() -> None:
    html = (STATIC / "index.html").read_text()
    modules = imported("main.js")
    assert set(re.findall(r'modulepreload" href="static/([a-z]+\.js)"', html)) == modules - {
        "main.js"
    }
    joining = imported("join.js") | imported("acting.js")
    assert {path.name for path in STATIC.glob("*.js")} == modules | joining | {"theme.js"}
    shown = {name.removeprefix("/static/") for name in _JOINING}
    assert shown == joining | {"theme.js", "page.css", "icon.svg"}
    assert not re.search(r"<style|style=|\son[a-z]+=|<script(?![^>]*\ssrc=)", html)
    for path in TEXTS:
        text = path.read_text()
        others = set(re.findall(r"https?://[^\s\"'`]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not others, path.name
        assert "innerHTML" not in text and "eval(" not in text, path.name
