"""Metrics for Prometheus, at `/metrics`, by `prometheus_client` of the extra `page`.

Names and labels stay few however many children come and go: of children only those that are there,
`MOST_CHILDREN` at most, and of figures that children name `MOST_FIGURES`.

`docs/reference/status.md` lists the names.
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from genkidama._version import pip_install
from genkidama.plugins.dashboard.routes import HttpResponse

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MOST_CHILDREN = 256
MOST_FIGURES = 64

#: Of the run: name, what it is, and how it is found in the document.
_RUN = {
    "elapsed_seconds": ("Seconds of training", "run", "elapsed"),
    "progress_ratio": ("How much of the run is done, from 0 to 1", "run", "share"),
    "left_seconds": ("Seconds that are left at most, if anybody knows", "run", "left"),
    "updates": ("Exchanges a child", "learning", "update"),
    "version": ("The version of the parent's weights", "learning", "version"),
    "episodes": ("Episodes of all children", "learning", "episodes"),
    "steps": ("Environment steps of all children", "learning", "steps"),
    "steps_per_second": ("Environment steps a second", "learning", "steps_per_second"),
    "watt_hours": ("Energy of the machines that tell their power, in Wh", "run", "watt_hours"),
    "mean_return": ("Mean return of the last episodes", "learning", "mean_return"),
}

#: Of each child that is there.
_CHILD = {
    "updates": "Exchanges with the parent",
    "steps": "Environment steps",
    "steps_per_second": "Environment steps a second",
    "last_return": "Return of its last episode",
    "staleness": "Versions that other pushes had made since its last answer",
    "lag": "Updates between acting and learning",
    "round_trip": "Seconds that a ping takes there and back",
    "bytes_in": "Bytes from it, on this connection",
    "bytes_out": "Bytes to it, on this connection",
    "distance": "How far its weights lay from the parent's at its push, relative to these",
    "exchanged": "When it exchanged last, in Unix seconds",
}

#: Of the machine of each child that tells it.
_MACHINE = {
    "celsius": "Temperature of its hottest sensor, in °C",
    "throttled": "1 while its machine is slowed down",
    "undervoltage": "1 while its machine's supply is too weak",
    "megahertz": "Clock of its machine's first core, in MHz",
    "wifi_dbm": "Strength of its Wi-Fi signal, in dBm",
    "free_megabytes": "Free memory of its machine, in MB",
    "watts": "Power of its machine, in W",
    "lanes": "Environments that each of its cores plays at most",
    "resting_lanes": "Environments of a core that rest while its machine is throttled",
    "chunks": "Chunks between its exchanges when it averages: more than 1 over a slow link",
}


def metrics(status: bytes) -> HttpResponse:
    """The answer to a monitor, of the document as JSON."""
    try:
        body, kind = exposed(msgspec.json.decode(status))
    except ImportError:
        words = f"metrics take the extra `page`: {pip_install('page')}\n".encode()
        return HttpResponse(HTTPStatus.NOT_IMPLEMENTED, words)
    return HttpResponse(HTTPStatus.OK, body, kind)


def exposed(document: dict[str, Any]) -> tuple[bytes, str]:
    """The text for Prometheus, and its content type, of a decoded document.

    Raises:
        ImportError: the extra `page` is not installed.
    """
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

    class Now:
        def collect(self) -> Iterator[Metric]:
            return _metrics(document)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Now())
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _metrics(document: dict[str, Any]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    run, learning = document["run"], document["learning"]
    labels = ("name", "kind", "environment", "algorithm", "backend", "software", "rule")
    yield InfoMetricFamily(
        "genkidama_run", "What is trained", value={name: str(run[name]) for name in labels}
    )
    yield GaugeMetricFamily(
        "genkidama_training", "1 while the run goes on", value=run["state"] == "training"
    )
    for name, (words, part, key) in _RUN.items():
        value = document[part][key]
        if value is not None:
            yield GaugeMetricFamily(f"genkidama_{name}", words, value=value)
    children = document["children"]
    count = GaugeMetricFamily("genkidama_children", "Children, by state", labels=["state"])
    for state in ("training", "away"):
        count.add_metric([state], sum(child["state"] == state for child in children))
    yield count
    there = [child for child in children if child["state"] == "training"][:MOST_CHILDREN]
    for name, words in _CHILD.items():
        gauge = GaugeMetricFamily(f"genkidama_child_{name}", words, labels=["child"])
        for child in there:
            if child[name] is not None:
                gauge.add_metric([child["name"]], child[name])
        yield gauge
    for name, words in _MACHINE.items():
        gauge = GaugeMetricFamily(f"genkidama_child_{name}", words, labels=["child"])
        for child in there:
            if (value := child["figures"].get(name)) is not None:
                gauge.add_metric([child["name"]], value)
        if gauge.samples:
            yield gauge
    refusals = CounterMetricFamily("genkidama_refusals", "Messages refused", labels=["code"])
    for code, number in sorted(document["refusals"].items()):
        refusals.add_metric([code], number)
    yield refusals
    figure = GaugeMetricFamily("genkidama_figure", "What backends measured last", labels=["figure"])
    for name, value in sorted(learning["figures"].items())[:MOST_FIGURES]:
        figure.add_metric([name], value)
    yield figure
    page = document["page"]
    if page is not None:
        yield GaugeMetricFamily("genkidama_viewers", "How many watch", value=page["viewers"])
        words = "CPU seconds that the page has taken"
        yield CounterMetricFamily("genkidama_page_cpu_seconds", words, value=page["seconds"])
