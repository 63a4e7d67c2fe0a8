"""Checker of a search's directory: its study, its rule and its trials agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from genkidama.config.experiment import Experiment
from genkidama.runs import checkpoint as checkpoints
from genkidama.runs.run import Run


@contextmanager
def study_at(address: str, name: str) -> Iterator[optuna.Study]:
    storage = optuna.storages.RDBStorage(
        address, skip_compatibility_check=True, skip_table_creation=True
    )
    try:
        yield optuna.load_study(storage=storage, study_name=name)
    finally:
        storage.remove_session()
        storage.engine.dispose()


def trials_of(out: Path) -> list[FrozenTrial]:
    with study_at(f"sqlite:///{out}/study.db", out.name) as study:
        return study.trials


def check(out: Path, trials: list[FrozenTrial], experiment: Experiment) -> None:
    """That the study of a search agrees with the rule, with itself and with the directory."""
    plan = experiment.search
    assert plan is not None
    assert len(trials) == plan.trials
    assert all(trial.state.is_finished() for trial in trials)
    rule = plan.rule()
    reports = sorted(
        (
            (record["report"], trial, record)
            for trial in trials
            for record in trial.user_attrs["phases"]
        ),
        key=lambda r: r[0],
    )
    assert [report for report, *_ in reports] == list(range(len(reports)))
    for _, trial, record in reports:
        metric = float("nan") if record["metric"] is None else record["metric"]
        rule.decide(trial.number, record["phase"], metric)
        rule.settle()
    for decision, (_, _, record) in zip(rule.decisions, reports, strict=True):
        found = (decision.order, decision.worse, decision.mode.value, decision.verdict.value)
        assert found == tuple(record[key] for key in ("order", "worse", "mode", "verdict"))
    for trial in trials:
        phases = trial.user_attrs["phases"]
        assert [record["phase"] for record in phases] == list(range(len(phases)))
        assert all(record["start"] <= record["end"] for record in phases)
        assert all(before["end"] <= after["start"] + 1e-9 for before, after in pairwise(phases))
        assert trial.intermediate_values.keys() == set(range(len(phases)))
        for record in phases:
            np.testing.assert_equal(
                trial.intermediate_values[record["phase"]],
                np.nan if record["metric"] is None else record["metric"],
            )
        ends = {"stop": TrialState.PRUNED, "continue": TrialState.COMPLETE}
        assert trial.state is (
            TrialState.FAIL if phases[-1]["metric"] is None else ends[phases[-1]["verdict"]]
        )
        assert trial.user_attrs["reason"]
        if trial.state is TrialState.COMPLETE:
            assert len(phases) == rule.length(trial.number)
            assert trial.value == phases[-1]["metric"]
        if phases[-1]["steps"]:
            run = Run.open(out / "trials" / f"{trial.number:04d}")
            assert out / trial.user_attrs["checkpoint"] == run.final
            snapshot, its = run.snapshot, run.experiment
            assert (snapshot.steps, snapshot.episodes) == (
                phases[-1]["steps"],
                phases[-1]["episodes"],
            )
            assert Experiment.from_dict(snapshot.experiment) == its
            assert its.search is None
            assert its.network.options.get("score") == trial.params.get("network.options.score")
            copies = [record["params"] for record in phases if "params" in record]
            params = [trial.params, *copies][-1]
            assert its.optimizer.learning_rate == params["optimizer.learning_rate"]
            if phases[0]["metric"] is not None:
                assert run.best is not None
                checkpoints.load(run.best)
