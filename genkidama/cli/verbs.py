"""What each verb of the command does: an experiment is read, its run followed, its end told."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import msgspec

import genkidama
from genkidama.cli import access, play, top
from genkidama.cli.cluster import check_search, search, train
from genkidama.cli.init import completion, init, list_examples
from genkidama.cli.progress import Progress
from genkidama.cli.tracking import export, requested_sinks
from genkidama.config.allowlist import allowing, check_imports, modules
from genkidama.config.decoding import parse_settings
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.plugins.sinks.feeds import Feeds
from genkidama.runs.checkpoint import CheckpointFolder
from genkidama.runs.directory import CHECKPOINTS, TRIALS, Run
from genkidama.runs.evaluation import Evaluation, Evaluations, evaluate
from genkidama.runs.goal import with_default_stop
from genkidama.runs.resume import finished, go_on
from genkidama.runtime.examples import experiment_file
from genkidama.runtime.import_strings import check_environment
from genkidama.server.trial import Snapshot

__all__ = ["RUN", "summary"]


def _train(options: argparse.Namespace) -> int:
    experiment, about_stop = with_default_stop(_experiment(options, "which experiment?"))
    check_environment(experiment)
    before = _before(options)
    _check_episodes(options)
    if options.resume is not None and (words := finished(Run.open(options.resume), experiment)):
        print(words, file=sys.stderr)
        if options.json:
            print(_json(summary(Run.open(options.resume), before)))
        return 0
    progress = Progress(experiment, about=about_stop)
    with requested_sinks(options, progress.say) as sinks:
        with _followed(progress):
            run = train(
                experiment,
                children=options.children,
                cores=options.cores,
                out=options.out,
                resume=options.resume,
                episodes=0,
                shards=options.shards,
                watch=progress,
                sinks=sinks,
                say=progress.say,
            )
        _finish(run, experiment, options, progress, before, sinks)
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    evaluations = []
    for target in options.targets:
        evaluation = evaluate(
            target,
            episodes=options.episodes,
            greedy=options.greedy,
            seed=options.seed,
            environment=options.environment,
            starts=options.starts,
            choose=options.choose,
            best=options.best,
            progress=not options.json,
            allow=options.allow,
        )
        if not options.json:
            print(_played(target, evaluation), flush=True)
        evaluations.append(evaluation)
    if len(evaluations) > 1:
        together = Evaluations(tuple(evaluations))
        print(_json(together.to_dict()) if options.json else together)
    elif options.json:
        print(_json(evaluations[0].to_dict()))
    return 0


def _played(target: Path, evaluation: Evaluation) -> str:
    """The result, and of which trial it is if a search was given."""
    run = evaluation.checkpoint.parent.parent
    best = f" (its best trial, {run.name})" if run.parent == target / TRIALS else ""
    return f"{target}{best}: {evaluation}"


def _search(options: argparse.Namespace) -> int:
    experiment = _experiment(options, "what is searched?")
    check_search(experiment)
    check_environment(experiment)
    progress = Progress(experiment)
    with _followed(progress):
        run = search(
            experiment,
            nodes=options.nodes,
            cores=options.cores,
            listen=options.listen,
            out=options.out,
            resume=options.resume,
            watch=progress,
            sinks=requested_sinks(options, progress.say),
            say=progress.say,
        )
    _say_end(progress)
    print(_findings(run, None if options.no_figures else run.path / "figures"))
    return 0


def _launch(options: argparse.Namespace) -> int:
    from genkidama.plugins.ray import launch

    experiment, about_stop = with_default_stop(_experiment(options, "which experiment?"))
    check_environment(experiment)
    _check_episodes(options)
    if options.json and experiment.search is not None:
        raise ConfigurationError(
            f"--json: {experiment.name} has a [search], which ends with a report; leave --json out"
        )
    before = _before(options)
    progress = Progress(experiment, about=about_stop)
    with requested_sinks(options, progress.say) as sinks:
        # Ray prints what it knows about lost workers to standard output, which is for the result.
        with _followed(progress), open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            run = launch(
                experiment,
                address=options.address,
                children=options.children,
                cores=options.cores,
                gpus=options.gpus,
                out=options.out,
                resume=options.resume,
                episodes=0,
                watch=progress,
                sinks=sinks,
                say=progress.say,
            )
        if experiment.search is not None:
            _say_end(progress)
            print(_findings(run, run.path / "figures"))
        else:
            _finish(run, experiment, options, progress, before, sinks)
    return 0


def _report(options: argparse.Namespace) -> int:
    print(_findings(Run.open(options.run), options.figures))
    return 0


def _plot(options: argparse.Namespace) -> int:
    runs = [genkidama.Run.open(path) for path in options.runs]
    if len(runs) == 1:
        paths = runs[0].plot(options.out, options.over)
    else:
        # It imports Matplotlib, which training does without.
        from genkidama.plugins.figures.plots import draw_runs

        paths = draw_runs(runs, options.out or Path("figures"), options.over)
    for path in paths:
        print(path)
    return 0


#: The function of each verb.
RUN: dict[str, Callable[[argparse.Namespace], int]] = {
    "train": _train,
    "evaluate": _evaluate,
    "play": play.play,
    "search": _search,
    "launch": _launch,
    "parent": access.parent,
    "join": access.join,
    "token": access.token,
    "top": top.top,
    "serve": top.serve,
    "signature": access.signature,
    "report": _report,
    "plot": _plot,
    "export": export,
    "init": init,
    "examples": list_examples,
    "completion": completion,
}


# Before a run.


def _experiment(options: argparse.Namespace, question: str) -> Experiment:
    """The experiment that the command line names, with its changes."""
    if options.file is None and options.resume is None:
        raise ConfigurationError(
            f"{question} give FILE.toml, the name of an example (`genkidama examples`), "
            "or --resume DIR"
        )
    if options.file is not None:
        experiment = Experiment.load(experiment_file(options.file))
    else:
        experiment = Run.open(options.resume).experiment
        check_imports(experiment.to_dict(), options.allow, str(options.resume), whole=True)
    changes = parse_settings(options.set)
    for key, value in (
        ("stop.updates", getattr(options, "updates", None)),
        ("seed", options.seed),
    ):
        if value is not None:
            changes[key] = value
    return experiment.with_settings(changes, source="the command line")


def _check_episodes(options: argparse.Namespace) -> None:
    if options.episodes < 0:
        raise ConfigurationError(
            f"--episodes {options.episodes}: at least 1 is needed, or 0 for no evaluation"
        )


def _before(options: argparse.Namespace) -> Snapshot | None:
    """What a run that goes on has done before."""
    if options.resume is None or not Run(options.resume).checkpoints:
        return None
    # The parent finds the same one and says which others it passes over. It may also find none,
    # and begin anew from its children's weights.
    found = CheckpointFolder(options.resume / CHECKPOINTS).latest()
    return None if found is None else found.snapshot


# Meanwhile.


@contextmanager
def _followed(progress: Progress) -> Iterator[None]:
    """Leaves the last line of progress standing, and under it an error's notes about going on."""
    try:
        yield
    except BaseException as error:
        progress.close()
        for note in getattr(error, "__notes__", []):
            progress.say(note)
        raise
    progress.close()


# Afterwards.


def _finish(
    run: Run,
    experiment: Experiment,
    options: argparse.Namespace,
    progress: Progress,
    before: Snapshot | None,
    sinks: Feeds,
) -> None:
    """Evaluates what was trained, and tells what has come of it and how to go on."""
    _say_end(progress)
    if options.episodes:
        found = evaluate(run, episodes=options.episodes, seed=experiment.seed, progress=True)
        sinks.evaluated(run)
        print(found, file=sys.stderr)
    folder = shlex.quote(str(run.path)) + allowing(run.allow)
    progress.say(f"run: {run.path}")
    progress.say(f"  watch it:   genkidama play {folder}")
    progress.say(f"  play again: genkidama evaluate {folder}")
    progress.say(f"  go on:      {go_on(run, experiment)}")
    if options.json:
        print(_json(summary(run, before, evaluated=options.episodes > 0)))


def _say_end(progress: Progress) -> None:
    """Why it has stopped."""
    if progress.status.reason:
        progress.say(f"ended: {progress.status.reason}")


def summary(run: Run, before: Snapshot | None = None, evaluated: bool = True) -> dict[str, Any]:
    """What `genkidama train --json` ends with: counts of the run, its speed and its evaluation.

    Args:
        before: what the run had done before this command, which its speed leaves out.
        evaluated: whether its evaluation belongs to it.
    """
    snapshot = run.snapshot
    evaluation = dict(run.evaluation or {}) if evaluated else {}
    evaluation.pop("returns", None)  # hundreds of numbers, which stand in the file
    steps = snapshot.steps - (before.steps if before else 0)
    seconds = snapshot.seconds - (before.seconds if before else 0.0)
    return {
        "run": str(run.path),
        "updates": snapshot.updates,
        "episodes": snapshot.episodes,
        "steps": snapshot.steps,
        "seconds": snapshot.seconds,
        "steps_per_second": steps / seconds if seconds > 0 else 0.0,
        "evaluation": evaluation or None,
    }


def _findings(run: Run, figures: Path | None) -> str:
    # They import Optuna, Matplotlib and scikit-learn, which training does without.
    from genkidama.plugins.hypertrick.report import report
    from genkidama.plugins.hypertrick.storage import storage_url

    experiment = run.experiment
    settings = experiment.search
    if settings is None:
        raise ConfigurationError(f"{run.path}: is no search; `genkidama plot {run.path}` draws it")
    url = storage_url(settings.storage, run.path)
    allow = allowing(modules(experiment.to_dict()))
    return report(url, run.path.absolute().name, figures, str(run.path), allow)


def _json(value: dict[str, Any]) -> str:
    """One JSON object; a NaN is null, which Python's own encoder would write as no JSON."""
    return msgspec.json.encode(value).decode()
