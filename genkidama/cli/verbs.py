"""The verbs `train` and `evaluate`, and the steps shared by all verbs that start a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from genkidama.cli.cluster import children_here, train
from genkidama.cli.options import shown_steps
from genkidama.cli.progress import Feed, Progress, feeding
from genkidama.config.allowlist import check_imports
from genkidama.config.decoding import check_least, parse_settings
from genkidama.config.dependent_defaults import brought
from genkidama.config.experiment import Experiment
from genkidama.config.formatting import energy, plural
from genkidama.errors import ConfigurationError
from genkidama.runs.checkpoint import CheckpointFolder
from genkidama.runs.evaluation import Evaluation, Evaluations, evaluate, evaluate_trained
from genkidama.runs.resume import afterwards, finished, go_on, prepare
from genkidama.runs.run import TRIALS, Run, best_trial_of
from genkidama.runs.sharded_checkpoint import CHECKPOINTS, load
from genkidama.runs.warm_start import found_weights
from genkidama.runtime.forkserver import prefork
from genkidama.runtime.machine import available_cores
from genkidama.server.trial import Snapshot


def run_train(options: argparse.Namespace) -> int:
    if options.weights is not None:
        options.weights = found_weights(options.weights)
    with chdir("."):  # which a module of the user's may leave; cores stay where that is
        experiment, about_stop = prepare(experiment_of(options, "which experiment?"))
        prefork()
    before = counters_before(options)
    check_least(0, episodes=options.episodes)
    if options.resume is not None and (words := finished(Run.open(options.resume), experiment)):
        print(words, file=sys.stderr)
        if options.json:
            run = Run.open(options.resume)
            print(_json(summary(run, before, run.evaluation)))
        return 0
    progress = Progress(experiment, about=about_stop)
    if any(each.partition("=")[0].strip() == "parent.listen" for each in options.set):
        progress.say("parent.listen: train takes a free port of this machine; see genkidama parent")
    children = children_here(experiment, options.children, options.cores)
    if options.cores is not None and (many := options.cores * children) > available_cores():
        progress.say(f"{many} core processes share {plural(available_cores(), 'CPU core')}")
    with feeding(getattr(options, "sinks", ()), progress.say) as sinks:
        with closing_display(progress):
            run = train(
                experiment,
                children=children,
                cores=options.cores,
                out=options.out,
                resume=options.resume,
                weights=options.weights,
                episodes=0,
                shards=options.shards,
                watch=progress,
                sinks=sinks,
                say=progress.say,
            )
        conclude(run, experiment, options, progress, before, sinks)
    return 0


def run_evaluate(options: argparse.Namespace) -> int:
    prefork()
    evaluations = []
    for target in options.targets:
        evaluation = evaluate(
            target,
            episodes=options.episodes,
            deterministic=options.deterministic,
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
    """The result, with the trial that was played if a search was given."""
    run = evaluation.checkpoint.parent.parent
    best = f" (its best trial, {run.name})" if run.parent == target / TRIALS else ""
    return f"{target}{best}: {evaluation}"


# Before a run.


def experiment_of(options: argparse.Namespace, question: str) -> Experiment:
    """The experiment that the command line names, with its changes."""
    origin = options.resume or getattr(options, "weights", None)
    if options.file is None and origin is None:
        raise ConfigurationError(
            f"{question} give FILE.toml, the name of an example (`genkidama examples`), "
            "or --resume DIR"
        )
    if options.file is not None:
        experiment = Experiment.load(options.file)
    else:
        assert origin is not None
        is_run = options.resume is not None or origin.is_dir()
        found = Run.open(origin) if is_run else load(origin)
        if options.resume is None and options.verb != "search" and isinstance(found, Run):
            found = best_trial_of(found)
        experiment = found.experiment
        check_imports(experiment.to_dict(), options.allow, str(origin), whole=True)
    changes = parse_settings(options.set)
    for key, value in (
        ("stop.updates", getattr(options, "updates", None)),
        ("seed", options.seed),
        ("parent.browsers", getattr(options, "browsers", False) or None),
    ):
        if value is not None:
            changes[key] = value
    changes |= shown_steps(options)
    changed = experiment.with_settings(changes, source="the command line")
    if more := {
        key: value
        for key, value in brought(experiment.algorithm.name, changed.algorithm.name).items()
        if key not in changes
    }:
        words = ", ".join(f"{key} = {value}" for key, value in more.items())
        print(f"{changed.algorithm.name} brings its own settings: {words}", file=sys.stderr)
    if changed.algorithm.demonstrations:
        from genkidama.learning.demonstrations import load as load_steps

        for file in changed.algorithm.demonstrations:
            print(load_steps(file).about(changed.environment.id), file=sys.stderr)
    return changed


def counters_before(options: argparse.Namespace) -> Snapshot | None:
    """The counters of a run that is resumed; None if it has none."""
    if options.resume is None:
        return None
    # The parent finds the same one and says which others it passes over. It may also find none,
    # and begin anew from its children's weights.
    found = CheckpointFolder(options.resume / CHECKPOINTS).latest()
    return None if found is None else found.snapshot


# Meanwhile.


@contextmanager
def closing_display(progress: Progress) -> Iterator[None]:
    """Closes the display at the end, and prints an error's notes below it."""
    try:
        yield
    except BaseException as error:
        progress.close()
        for note in getattr(error, "__notes__", []):
            progress.say(note)
        raise
    progress.close()


# Afterwards.


def conclude(
    run: Run,
    experiment: Experiment,
    options: argparse.Namespace,
    progress: Progress,
    before: Snapshot | None,
    sinks: Feed,
) -> None:
    """Evaluates the trained policy, and prints results and the commands that follow."""
    say_reason(progress)
    found: Evaluation | None = None
    try:
        if options.episodes != 0:
            found = evaluate_trained(run, options.episodes, experiment.seed, progress=True)
            sinks.evaluated(run)
            print(found, file=sys.stderr)
    finally:
        for line in afterwards(run, go_on(run, experiment)):
            progress.say(line)
    if options.json:
        print(_json(summary(run, before, None if found is None else found.to_dict())))


def say_reason(progress: Progress) -> None:
    """Prints the reason for the end."""
    status = progress.status
    if status.reason:
        used = status.watt_hours(status.time)
        progress.say(f"ended: {status.reason}" + (f", with {energy(used)}" if used else ""))


def summary(
    run: Run, before: Snapshot | None = None, evaluation: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The JSON object of `genkidama train --json`: counts of the run, its speed and its evaluation.

    Args:
        before: what the run had done before this command, which its speed leaves out.
        evaluation: as `evaluation.json` has it, whose hundreds of returns are left out.
    """
    snapshot = run.snapshot
    kept = {key: value for key, value in (evaluation or {}).items() if key != "returns"}
    steps = snapshot.steps - (before.steps if before else 0)
    seconds = snapshot.seconds - (before.seconds if before else 0.0)
    return {
        "run": str(run.path),
        "updates": snapshot.updates,
        "episodes": snapshot.episodes,
        "steps": snapshot.steps,
        "seconds": snapshot.seconds,
        "steps_per_second": steps / seconds if seconds > 0 else 0.0,
        "evaluation": kept or None,
    }


def _json(value: dict[str, Any]) -> str:
    """One JSON object; a NaN is null, which Python's own encoder would write as no JSON."""
    return msgspec.json.encode(value).decode()
