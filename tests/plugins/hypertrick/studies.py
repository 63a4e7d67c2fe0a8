"""Real Optuna studies as a search leaves them: the real rule, a made-up problem, virtual time."""

from __future__ import annotations

import heapq
import math
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import optuna
from optuna.trial import TrialState, create_trial

from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.records import StudySnapshot
from genkidama.plugins.hypertrick.rule import Mode, Verdict
from genkidama.plugins.hypertrick.settings import SearchSettings
from genkidama.plugins.hypertrick.space import parse_space
from genkidama.plugins.hypertrick.study import _distribution, read

COMPLETE = TrialState.COMPLETE
PRUNED = TrialState.PRUNED
FAIL = TrialState.FAIL
RUNNING = TrialState.RUNNING

#: As a search file might have it, with a choice of texts.
SPACE: dict[str, dict[str, Any]] = {
    "optimizer.learning_rate": {"low": 1e-5, "high": 1e-2, "log": True},
    "algorithm.batch_size": {"low": 2, "high": 100, "log": True, "step": 1},
    "algorithm.gamma": {"choices": [0.9, 0.95, 0.99, 0.995, 0.999]},
    "optimizer.name": {"choices": ["adam", "rmsprop", "sgd"]},
}


def lander(params: dict[str, Any], phase: int, rng: np.random.Generator) -> float:
    """A score that saturates: the learning rate matters most, then γ, the batch size hardly."""
    off = abs(math.log10(params["optimizer.learning_rate"]) + 3.2)
    best = (
        260
        - 190 * off**1.5
        - {0.9: 120, 0.95: 70, 0.99: 20, 0.995: 0, 0.999: 10}[params["algorithm.gamma"]]
    )
    best -= {"adam": 0, "rmsprop": 10, "sgd": 40}[params["optimizer.name"]]
    return float(-200 + (best + 200) * (1 - math.exp(-(phase + 1) / 3)) + rng.normal(0, 12))


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'study.db'}"


@cache
def _empty() -> tuple[bytes, str]:
    """A database of Optuna's without a study, and the version of its tables."""
    with tempfile.TemporaryDirectory() as folder:
        storage = optuna.storages.RDBStorage(url_of(Path(folder)))
        version = storage.get_head_version()
        storage.remove_session()
        storage.engine.dispose()
        return (Path(folder) / "study.db").read_bytes(), version


def make_tables(file: Path) -> None:
    """Makes a database for studies, by a copy."""
    file.write_bytes(_empty()[0])


def head() -> str:
    """The version of Optuna's tables."""
    return _empty()[1]


def make_study(
    folder: Path | None = None,
    *,
    trials: int = 24,
    phases: int = 5,
    nodes: int = 4,
    eviction_rate: float = 0.25,
    method: str = "hypertrick",
    space: dict[str, dict[str, Any]] | None = None,
    score: Callable[[dict[str, Any], int, np.random.Generator], float] = lander,
    failing: tuple[int, ...] = (5, 11),
    not_a_number: tuple[int, ...] = (8,),
    until: float = math.inf,
    seed: int = 7,
    settings: dict[str, Any] | None = None,
) -> optuna.Study:
    """A search in `folder`/study.db, called "search", following the study's schema.

    Args:
        folder: where; in memory if absent, which is quicker.
        failing: trials that crash in their second phase.
        not_a_number: trials whose second metric is NaN.
        until: search time at which the search is looked at; what is under way then is RUNNING.
        settings: replaces entries of `[search]`; nothing runs with wrong ones.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rng = np.random.default_rng(seed)
    space = SPACE if space is None else space
    if folder is not None:
        make_tables(folder / "study.db")
    study = optuna.create_study(
        storage=None if folder is None else url_of(folder),
        study_name="search",
        direction="maximize",
    )
    search: dict[str, Any] = {
        "method": method,
        "trials": trials,
        "phases": phases,
        "eviction_rate": eviction_rate,
        "phase_episodes": 500,
        "space": space,
    } | (settings or {})
    about = {"name": "lander", "environment": {"id": "LunarLander-v3"}, "search": search}
    study.set_user_attr("genkidama", {"version": "0.1.0", "experiment": about})
    try:
        rule = msgspec.convert(search, SearchSettings).rule()
    except (ConfigurationError, msgspec.ValidationError):
        return study
    distributions = {key: _distribution(one) for key, one in parse_space(space).items()}
    study.sampler = optuna.samplers.RandomSampler(seed=seed)
    speeds = rng.uniform(0.7, 1.4, nodes)

    # (time of the report, node, trial, its phases so far); a node starts a trial as soon as it is
    # free.
    events: list[tuple[float, int, Any, list[dict[str, Any]], float]] = []
    started = reported = 0

    def begin(node: int, now: float) -> None:
        nonlocal started
        if started < trials and now < until:
            started += 1
            trial = study.ask(distributions)
            heapq.heappush(events, (now + duration(node, trial), node, trial, [], now))

    def duration(node: int, trial: Any) -> float:
        return float(
            speeds[node]
            * (40 + 0.4 * trial.params.get("algorithm.batch_size", 20))
            * rng.uniform(0.85, 1.2)
        )

    for node in range(nodes):
        begin(node, 3.0 * node)
    while events and events[0][0] <= until:
        now, node, trial, record, start = heapq.heappop(events)
        phase = len(record)
        crashed = trial.number in failing and phase == 1
        metric = (
            math.nan
            if crashed or (trial.number in not_a_number and phase == 1)
            else score(trial.params, phase, rng)
        )
        decision = rule.decide(trial.number, phase, metric)
        record.append(
            {
                "phase": phase,
                "node": f"child-{node + 1}",
                "start": start,
                "end": now,
                "metric": None if math.isnan(metric) else metric,
                "order": decision.order,
                "worse": decision.worse,
                "mode": decision.mode.value,
                "verdict": decision.verdict.value,
                "steps": 50_000 * (phase + 1),
                "episodes": 500 * (phase + 1),
                "report": reported,
            }
        )
        reported += 1
        trial.report(metric, phase)
        trial.set_user_attr("phases", record)
        trial.set_user_attr(
            "checkpoint", f"trials/{trial.number:04d}/checkpoints/latest.safetensors"
        )
        if decision.verdict is Verdict.CONTINUE and phase + 1 < phases:
            heapq.heappush(events, (now + duration(node, trial), node, trial, record, now))
            continue
        if decision.verdict is Verdict.PAUSE:  # its search is looked at before the rung is full
            begin(node, now)
            continue
        if decision.mode is Mode.FAILURE:
            trial.set_user_attr(
                "reason",
                "the process ended with code 1" if crashed else "the metric is not a number",
            )
            study.tell(trial, state=TrialState.FAIL)
        elif decision.verdict is Verdict.STOP:
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, metric)
        begin(node, now)
    return study


def phase(
    number: int,
    node: str,
    start: float,
    end: float,
    metric: float | None,
    mode: str = "collection",
    **more: Any,
) -> dict[str, Any]:
    return {
        "phase": number,
        "node": node,
        "start": start,
        "end": end,
        "metric": metric,
        "mode": mode,
        "verdict": "continue",
        **more,
    }


def written(*trials: tuple[TrialState, list[dict[str, Any]]], **settings: Any) -> StudySnapshot:
    """StudySnapshot of a study that was written by hand.

    Two phases and r = 1/4, unless told otherwise.
    """
    space = {"x.y": {"low": 0.0, "high": 1.0}}
    study = make_study(phases=2, until=-1.0, space=space, settings=settings)
    distributions = {key: _distribution(one) for key, one in parse_space(space).items()}
    for state, phases in trials:
        values = {p["phase"]: math.nan if p["metric"] is None else p["metric"] for p in phases}
        study.add_trial(
            create_trial(
                state=state,
                value=phases[-1]["metric"] if state is TrialState.COMPLETE else None,
                params={"x.y": 0.5},
                distributions=distributions,
                intermediate_values=values,
                user_attrs={"phases": phases},
            )
        )
    return read(study)


def by_hand() -> StudySnapshot:
    return written(
        (
            COMPLETE,
            [phase(0, "a", 0, 10, 1.0, report=1), phase(1, "a", 10, 20, 4.0, "none", report=3)],
        ),
        (PRUNED, [phase(0, "b", 5, 10, 0.5, "selection", verdict="stop", report=2)]),
        (FAIL, [phase(0, "b", 12, 14, None, "failure", verdict="stop", report=4)]),
        (RUNNING, [phase(0, "b", 14, 24, 5.0, "selection", report=5)]),
        trials=6,
    )
