"""The document on a terminal: every column and row of it fits."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from genkidama.page.children import Facts
from genkidama.page.table import frame
from tests.page.stories import BEGAN, as_json, began, exchange, measures, told


def drawn(width: int, height: int, children: int = 30, words: str = "") -> list[str]:
    document = told(began(*(f"c{number}" for number in range(children))), steps=1000)
    document.take([exchange(number, f"c{number % 7}") for number in range(1, 40)])
    document.take([measures("c1", 40, pps=1234.0)])
    document.catch_up()
    found = as_json(document.whole(BEGAN + 41, lambda _: Facts(cores=4, round_trip=0.0012)))
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, color_system=None)
    console.print(frame(found, width, height, words))
    return file.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(40, 12), (80, 24), (160, 30)])
def test_it_fits(width: int, height: int) -> None:
    lines = drawn(width, height)
    assert len(lines) < height and all(len(line) <= width for line in lines)
    assert lines[0].startswith("LunarLander-v3 · ppo")
    assert lines[-1].startswith("… and ")


def test_what_it_says() -> None:
    text = "\n".join(drawn(160, 60, words="the parent is away; trying again"))
    for words in ("39%", "return   38.5", "390 steps", "pps 1,234", "1.2 ms", "trying again"):
        assert words in text
    assert sum(line.startswith("c") for line in text.splitlines()) == 31
