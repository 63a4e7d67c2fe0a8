"""One search with real processes, its figures, and what its best trial plays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import genkidama
from genkidama.config.decoding import parse_settings
from genkidama.errors import EnvironmentFailure
from genkidama.plugins.hypertrick.local_search import search
from genkidama.plugins.hypertrick.study import StudySnapshot, importances, open_study, read
from studies.search.contestants import CONTESTANTS, Row, Wanted

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "lunarlander"


def measure(one: Wanted, seconds: float, work: Path, episodes: int) -> Row:
    """Searches, or goes on with a search that was cut off, and lets its best trial play.

    Args:
        one: the search.
        seconds: it lasts at most.
        work: the folder of the searches' directories.
        episodes: that the best trial plays.

    Raises:
        EnvironmentFailure: no trial has a score.
    """
    out = work / one.folder
    begun = (out / "study.db").exists()
    run = search(
        _experiment(one, seconds),
        children=2,
        cores=1,
        out=None if begun else out,
        resume=out if begun else None,
        progress=True,
    )
    study = open_study(f"sqlite:///{out.absolute() / 'study.db'}", out.name)
    findings = read(study)
    best = findings.best
    if best is None:
        raise EnvironmentFailure(f"{out}: no trial has a score; give the searches more --minutes")
    played = genkidama.evaluate(
        run.path / "trials" / f"{best.number:04d}", episodes=episodes, progress=True
    )
    known = importances(findings)
    return {
        "method": one.name,
        "sampler": one.sampler,
        "seed": one.seed,
        "changes": list(one.changes),
        "version": genkidama.__version__,
        "bound": seconds,
        **_figures(findings),
        "score": best.score,
        "evaluation": played.mean,
        "deviation": played.std,
        "episodes": episodes,
        "trial": best.number,
        "params": best.params,
        "time_to_best": best.phases[-1].end,
        "importances": known.shares if known else {},
    }


def _experiment(one: Wanted, seconds: float) -> genkidama.Experiment:
    own = {**CONTESTANTS[one.name].settings, "sampler": one.sampler, "seconds": seconds}
    settings: dict[str, Any] = {f"search.{key}": value for key, value in own.items()}
    experiment = genkidama.Experiment.load(EXAMPLES / "search.toml")
    changes = {
        key: value
        for key, value in parse_settings(list(one.changes)).items()
        if key not in settings
    }
    return experiment.with_settings({**settings, **changes, "seed": one.seed})


def _figures(findings: StudySnapshot) -> Row:
    return {
        "seconds": findings.search_time,
        "trials": len(findings.trials),
        "completed": len(findings.of_state("completed")),
        "stopped": len(findings.of_state("stopped")),
        "phases": sum(len(trial.phases) for trial in findings.trials),
        "nodes": len(findings.timeline),
        "occupancy": findings.occupancy,
        "completion_rate": findings.completion_rate,
        "best_at": [
            (round(step.phases[-1].end, 1), round(step.score, 1)) for step in findings.improvements
        ],
    }


def train(rows: list[Row], seeds: list[int], seconds: float, work: Path) -> None:
    """The best configuration as a plain run, beside our own settings, for the same time."""
    best = max(rows, key=lambda row: row["evaluation"])
    plain = genkidama.Experiment.load(EXAMPLES / "search.toml").to_dict()
    del plain["search"]
    time = {"stop.seconds": seconds}
    searched = genkidama.Experiment.from_dict(plain).with_settings({**best["params"], **time})
    ours = genkidama.Experiment.load(EXAMPLES / "lunarlander.toml").with_settings(time)
    label = CONTESTANTS[best["method"]].label
    print(f"the best configuration ({label}, seed {best['seed']}) and lunarlander.toml:")
    for seed in seeds:
        for name, experiment in (("searched", searched), ("lunarlander", ours)):
            out = work / f"{name}-{seed}"
            run = genkidama.Run(out)
            if run.evaluation is None:
                seeded = experiment.with_settings({"seed": seed})
                run = genkidama.train(seeded, children=2, cores=1, out=out, progress=True)
            assert run.evaluation is not None
            print(f"{name}, seed {seed}: {run.evaluation['mean']:.1f}", flush=True)
