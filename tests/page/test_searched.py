"""A search's trials: who ran which, phase by phase, and how it went."""

from __future__ import annotations

from typing import Any

from genkidama.events import Event, Joined, PhaseReported, Started, TrialAssigned, TrialEnded
from genkidama.experiment import Experiment
from genkidama.page.document import Document
from tests.page.stories import BEGAN, as_json

SETTINGS = {
    "name": "s",
    "search": {
        "trials": 4,
        "phases": 2,
        "phase_steps": 100,
        "space": {"optimizer.learning_rate": {"low": 1e-4, "high": 1e-2}},
    },
}


def assigned(seconds: float, trial: int, child: str, phase: int = 0) -> Event:
    params = {"optimizer.learning_rate": 0.001 * trial}
    return TrialAssigned(time=BEGAN + seconds, trial=trial, child=child, phase=phase, params=params)


def report(seconds: float, trial: int, phase: int, node: str, metric: float | None) -> Event:
    more: dict[str, Any] = {"order": 0, "worse": 0, "mode": "data", "verdict": "continue"}
    more |= {"steps": 5, "episodes": 1, "report": 0}
    return PhaseReported(
        time=BEGAN + seconds,
        trial=trial,
        phase=phase,
        node=node,
        start=0.0,
        end=seconds,
        metric=metric,
        **more,
    )


def ended(seconds: float, trial: int, state: str) -> Event:
    return TrialEnded(time=BEGAN + seconds, trial=trial, state=state, reason="so")


def test_trials_with_their_phases_nodes_and_scores() -> None:
    document = Document(Experiment.from_dict(SETTINGS))
    document.take([Started(time=BEGAN, run="s", software="1")])
    document.take([Joined(time=BEGAN, child="n", version=0, parameters=1, trial=1)])
    document.take([assigned(0, 1, "n"), assigned(0, 2, "m"), report(4, 1, 0, "n", 5.0)])
    document.take([report(5, 2, 0, "m", 1.0), ended(5, 2, "stopped")])
    document.take([assigned(7, 1, "m", 1), report(9, 1, 1, "m", 8.0), ended(9, 1, "completed")])
    document.take([assigned(9, 3, "n")])
    document.catch_up()
    found = as_json(document.whole(BEGAN + 10))
    search = found["search"]
    assert search["method"] == "HyperTrick"
    assert search["best"] == {"trial": 1, "score": 8.0, "settings": _settings(1)}
    assert search["settings"] == ["optimizer.learning_rate"] and search["nodes"] == ["n", "m"]
    one, two, three = search["trials"]
    assert [(each["state"], each["score"]) for each in (one, two, three)] == [
        ("finished", 8.0),
        ("stopped", 1.0),
        ("running", None),
    ]
    assert one["phases"] == [
        {"node": "n", "from": 0.0, "to": 4.0, "score": 5.0},
        {"node": "n", "from": 4.0, "to": 7.0, "score": None},
        {"node": "m", "from": 7.0, "to": 9.0, "score": 8.0},
    ]
    assert two["phases"] == [{"node": "m", "from": 0.0, "to": 5.0, "score": 1.0}]
    assert three["phases"] == [{"node": "n", "from": 9.0, "to": None, "score": None}]
    assert found["learning"]["mean_return"] == 8.0
    assert [row[2] for row in found["learning"]["curve"]["rows"]] == [5.0, 8.0]


def _settings(trial: int) -> dict[str, float]:
    return {"optimizer.learning_rate": 0.001 * trial}
