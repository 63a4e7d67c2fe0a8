"""What Prometheus reads, read by its own parser."""

from __future__ import annotations

import builtins
import json
import re
from typing import Any

import msgspec
import pytest

from genkidama.plugins.dashboard.metrics import MOST_CHILDREN, MOST_FIGURES, exposed, metrics
from genkidama.runs.status import Facts
from genkidama.server.events import PushesRefused
from tests.helpers import ROOT
from tests.stories import BEGAN, as_json, began, measured, pushed, told


def samples(document: dict[str, Any]) -> dict[tuple[str, ...], float]:
    parser = pytest.importorskip("prometheus_client.parser")
    text = exposed(document)[0].decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def shown() -> dict[str, Any]:
    status = told([*began("a", "b"), pushed(1, "a"), pushed(2, "b")], steps=100)
    status.take([measured("a", 3, pps=120.0, celsius=61.5, watts=3.6)])
    status.page = {"viewers": 3, "seconds": 0.5}
    status.take([PushesRefused(time=BEGAN, child="x", code="token", reason="-", count=3)])
    return as_json(status.document(BEGAN + 3, lambda _: Facts(bytes_in=7, round_trip=0.002)))


def test_values_are_those_of_the_document() -> None:
    found = samples(shown())
    assert found["genkidama_steps",] == 20 and found["genkidama_mean_return",] == 1.5
    assert found["genkidama_progress_ratio",] == 0.2
    assert found["genkidama_children", "training"] == 2
    assert found["genkidama_child_bytes_in", "a"] == 7
    assert found["genkidama_child_round_trip", "b"] == 0.002
    assert found["genkidama_refusals_total", "token"] == 3
    assert found["genkidama_figure", "pps"] == 120.0
    assert found["genkidama_child_celsius", "a"] == 61.5
    assert ("genkidama_child_watts", "b") not in found
    assert found["genkidama_watt_hours",] == pytest.approx(3 * 3.6 / 3600)
    assert found["genkidama_viewers",] == 3
    assert found["genkidama_page_cpu_seconds_total",] == 0.5


def test_series_stay_few_whatever_children_are_called_and_measure() -> None:
    status = told(began(*(f"c{number}" for number in range(1000))))
    for number in range(100):
        status.take([measured("c1", number, **{f"f{number}_{each}": 1.0 for each in range(30)})])
    found = samples(as_json(status.document(BEGAN + 200)))
    assert sum(name == "genkidama_child_steps" for name, *_ in found) == MOST_CHILDREN
    assert sum(name == "genkidama_figure" for name, *_ in found) <= MOST_FIGURES
    assert len(found) < 12 * MOST_CHILDREN + 200


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def missing(name: str, *more: Any, **others: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return imported(name, *more, **others)

    monkeypatch.setattr(builtins, "__import__", missing)
    found = metrics(msgspec.json.encode(shown()))
    assert found.status == 501 and b"pip install 'genkidama-rl[page]'" in found.body


def test_the_dashboards_queries_name_metrics_that_exist() -> None:
    board = json.loads((ROOT / "deploy" / "grafana" / "genkidama.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    assert len(queries) >= 10
    named = {name for query in queries for name in re.findall(r"genkidama_\w+", query)}
    document = shown()
    document["run"]["left"] = 9.0
    described = re.findall(r"# TYPE (\w+) ", exposed(document)[0].decode())
    assert named <= set(described)
