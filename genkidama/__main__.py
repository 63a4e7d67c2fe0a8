"""The `genkidama` command: train · evaluate · search · launch · report · doctor."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import genkidama
from genkidama.doctor.__main__ import main as doctor_alone
from genkidama.doctor.command import add_arguments
from genkidama.errors import ConfigurationError, GenkidamaError

#: Why the commands cannot work; None if they can. The doctor needs nothing of what is imported here, and says what is wrong with it.
_BROKEN: Exception | None = None
try:
    import msgspec

    from genkidama.experiment import Experiment
    from genkidama.launch import launch
    from genkidama.local.cluster import check_search, search, summary, train
    from genkidama.local.evaluation import evaluate
    from genkidama.local.progress import Progress, SearchProgress
    from genkidama.overrides import parse_settings
    from genkidama.system.console import fail
    from genkidama.system.plugs import check_environment
    from genkidama.system.run import Run
    from genkidama.trial import Snapshot
except Exception as error:  # a package is missing, or too old, or was built for another machine
    _BROKEN = error


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 0, 1 (this machine cannot), 2 (the user's mistake), 130 (interrupted)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if _BROKEN is not None:
        if arguments[:1] == ["doctor"]:
            return doctor_alone(arguments[1:])
        print(
            f"error: this installation is not complete: {_BROKEN}; see `genkidama doctor`",
            file=sys.stderr,
        )
        return 1
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        return options.command(options)  # type: ignore[no-any-return]
    except GenkidamaError as error:
        return fail(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # whoever read our output has gone, as `| head` does
        sys.stderr.close()
        return 1


def _terminated(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="genkidama", description="Trains one policy on many small machines."
    )
    parser.add_argument("--version", action="version", version=f"genkidama {genkidama.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    command = commands.add_parser(
        "train",
        help="train a whole cluster on this machine",
        description="Trains a whole cluster on this machine.",
    )
    command.add_argument(
        "file",
        nargs="?",
        metavar="FILE.toml",
        type=Path,
        help="the experiment (may be left out with --resume)",
    )
    command.add_argument(
        "--children", type=int, default=2, metavar="N", help="child processes (default: 2)"
    )
    command.add_argument(
        "--cores",
        type=int,
        metavar="N",
        help="core processes of each child (default: the CPU cores, shared out)",
    )
    command.add_argument(
        "--updates",
        type=int,
        metavar="N",
        help="stop after so many exchanges a child (stop.updates)",
    )
    command.add_argument("--seed", type=int, metavar="N", help="the experiment's seed")
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="the run directory (default: a new one under runs/)"
    )
    command.add_argument("--resume", type=Path, metavar="DIR", help="go on with this run")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting, as child.exchange=free; repeatable",
    )
    command.add_argument(
        "--episodes",
        type=int,
        default=500,
        metavar="N",
        help="length of the final evaluation (default: 500; 0 for none)",
    )
    command.add_argument(
        "--json", action="store_true", help="print one JSON object on standard output at the end"
    )
    command.set_defaults(command=_train)

    command = commands.add_parser(
        "evaluate",
        help="play episodes with a run's or a checkpoint's weights",
        description="Plays episodes.",
    )
    command.add_argument(
        "target",
        type=Path,
        metavar="DIR_OR_CHECKPOINT",
        help="a run directory (its best checkpoint is taken) or a file",
    )
    command.add_argument(
        "--episodes", type=int, default=500, metavar="N", help="how many (default: 500)"
    )
    command.add_argument(
        "--greedy",
        action="store_true",
        help="take the most probable action instead of a sampled one",
    )
    command.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the episodes follow from it (default: 0)"
    )
    command.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object on standard output and nothing else",
    )
    command.set_defaults(command=_evaluate)

    command = commands.add_parser(
        "search",
        help="search for hyperparameters",
        description="Searches for hyperparameters with HyperTrick.",
    )
    command.add_argument(
        "file",
        nargs="?",
        metavar="FILE.toml",
        type=Path,
        help="an experiment with a [search] (not needed with --resume)",
    )
    command.add_argument(
        "--nodes",
        type=int,
        default=2,
        metavar="N",
        help="child processes on this machine, one trial each (default: 2)",
    )
    command.add_argument(
        "--cores",
        type=int,
        metavar="N",
        help="core processes of each node (default: the CPU cores, shared out)",
    )
    command.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="let children on other machines take part, as 0.0.0.0:8765",
    )
    command.add_argument("--seed", type=int, metavar="N", help="the experiment's seed")
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="the run directory (default: a new one under runs/)"
    )
    command.add_argument("--resume", type=Path, metavar="DIR", help="go on with this search")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting, as search.trials=100; repeatable",
    )
    command.add_argument("--no-figures", action="store_true", help="draw nothing at the end")
    command.add_argument(
        "--simulate",
        action="store_true",
        help="show the rule and its rivals on the paper's toy problem; trains nothing",
    )
    command.set_defaults(command=_search)

    command = commands.add_parser(
        "launch",
        help="train or search on a Ray cluster",
        description="Trains or searches on a Ray cluster.",
    )
    command.add_argument(
        "file",
        nargs="?",
        metavar="FILE.toml",
        type=Path,
        help="the experiment (may be left out with --resume)",
    )
    command.add_argument(
        "--ray", action="store_true", required=True, help="on Ray: the only kind of cluster so far"
    )
    command.add_argument(
        "--address",
        metavar="ADDRESS",
        help="the cluster's (default: $RAY_ADDRESS, or the one this machine belongs to)",
    )
    command.add_argument(
        "--children",
        type=int,
        metavar="N",
        help="how many (default: one on each node that has enough CPUs)",
    )
    command.add_argument(
        "--cores",
        type=int,
        metavar="N",
        help="CPUs and core processes of each child (default: all of a node)",
    )
    command.add_argument(
        "--gpus", type=float, default=0.0, metavar="N", help="GPUs of each child (default: 0)"
    )
    command.add_argument("--seed", type=int, metavar="N", help="the experiment's seed")
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="the run directory, on this machine (default: a new one under runs/)",
    )
    command.add_argument("--resume", type=Path, metavar="DIR", help="go on with this run")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting, as child.exchange=free; repeatable",
    )
    command.add_argument(
        "--episodes",
        type=int,
        default=500,
        metavar="N",
        help="length of the final evaluation (default: 500; 0 for none)",
    )
    command.add_argument(
        "--json", action="store_true", help="print one JSON object on standard output at the end"
    )
    command.set_defaults(command=_launch)

    command = commands.add_parser(
        "report",
        help="what a search has found, while it runs or afterwards",
        description="Reports on a search.",
    )
    command.add_argument("run", metavar="DIR", type=Path, help="a search's run directory")
    command.add_argument(
        "--figures", type=Path, metavar="DIR", help="draw the figures there (PNG and SVG)"
    )
    command.set_defaults(command=_report)

    command = commands.add_parser(
        "doctor",
        help="examine this machine and the way to its parent",
        description="Examines this machine, and the way to its parent.",
    )
    add_arguments(command)
    return parser


def _train(options: argparse.Namespace) -> int:
    if options.file is None and options.resume is None:
        raise ConfigurationError("which experiment? give FILE.toml, or --resume DIR")
    experiment = (
        Experiment.load(options.file) if options.file else Run.open(options.resume).experiment
    )
    changes = parse_settings(options.set)
    changes |= {
        key: value
        for key, value in (("stop.updates", options.updates), ("seed", options.seed))
        if value is not None
    }
    experiment = experiment.with_settings(changes, source="the command line")
    check_environment(experiment)
    before = _before(options)
    if options.episodes < 0:
        raise ConfigurationError(
            f"--episodes {options.episodes}: at least 1 is needed, or 0 for no evaluation"
        )
    progress = Progress(experiment)
    with _followed(progress):
        run = train(
            experiment,
            children=options.children,
            cores=options.cores,
            out=options.out,
            resume=options.resume,
            episodes=0,
            watch=progress,
        )
    _finish(run, experiment, options, progress, before)
    return 0


def _finish(
    run: Run,
    experiment: Experiment,
    options: argparse.Namespace,
    progress: Progress,
    before: Snapshot | None,
) -> None:
    """Evaluates what was trained, and tells what has come of it."""
    if options.episodes:
        progress.say(f"evaluating {options.episodes} episodes …")
        print(evaluate(run, episodes=options.episodes, seed=experiment.seed), file=sys.stderr)
    progress.say(f"run: {run.path}  (evaluate it again: genkidama evaluate {run.path})")
    if options.json:
        result = summary(
            run, None if before is None else {"steps": before.steps, "seconds": before.seconds}
        )
        print(_json(result if options.episodes else result | {"evaluation": None}))


@contextmanager
def _followed(progress: Progress | SearchProgress) -> Iterator[None]:
    """Leaves the last line of progress standing, and under it what an error has to say about going on."""
    try:
        yield
    except BaseException as error:
        progress.close()
        for note in getattr(error, "__notes__", []):
            progress.say(note)
        raise
    progress.close()


def _evaluate(options: argparse.Namespace) -> int:
    evaluation = evaluate(
        options.target, episodes=options.episodes, greedy=options.greedy, seed=options.seed
    )
    print(_json(evaluation.to_dict()) if options.json else f"{options.target}: {evaluation}")
    return 0


def _search(options: argparse.Namespace) -> int:
    if options.simulate:
        print(_simulator().simulate_report(seed=options.seed, figures=options.out))
        return 0
    if options.file is None and options.resume is None:
        raise ConfigurationError("what is searched? give FILE.toml, or --resume DIR")
    experiment = (
        Experiment.load(options.file) if options.file else Run.open(options.resume).experiment
    )
    changes = parse_settings(options.set) | (
        {"seed": options.seed} if options.seed is not None else {}
    )
    experiment = experiment.with_settings(changes, source="the command line")
    check_search(experiment)
    check_environment(experiment)
    progress = SearchProgress(experiment)
    with _followed(progress):
        run = search(
            experiment,
            nodes=options.nodes,
            cores=options.cores,
            listen=options.listen,
            out=options.out,
            resume=options.resume,
            watch=progress,
        )
    print(_findings(run, None if options.no_figures else run.path / "figures"))
    return 0


def _simulator() -> Any:
    """`benchmarks.hypertrick.gantt` of the checkout that this package is part of."""
    checkout = Path(genkidama.__file__).resolve().parents[1]
    if not (checkout / "benchmarks" / "hypertrick" / "gantt.py").exists():
        raise ConfigurationError(
            "--simulate: the simulator is not installed with Genkidama: it is the folder "
            "benchmarks/hypertrick of its source; run this with a checkout"
        )
    sys.path.insert(0, str(checkout))
    return importlib.import_module("benchmarks.hypertrick.gantt")


def _launch(options: argparse.Namespace) -> int:
    if options.file is None and options.resume is None:
        raise ConfigurationError("which experiment? give FILE.toml, or --resume DIR")
    experiment = (
        Experiment.load(options.file) if options.file else Run.open(options.resume).experiment
    )
    changes = parse_settings(options.set) | (
        {"seed": options.seed} if options.seed is not None else {}
    )
    experiment = experiment.with_settings(changes, source="the command line")
    check_environment(experiment)
    if options.episodes < 0:
        raise ConfigurationError(
            f"--episodes {options.episodes}: at least 1 is needed, or 0 for no evaluation"
        )
    if options.json and experiment.search is not None:
        raise ConfigurationError(
            f"--json: {experiment.name} has a [search], which ends with a report; leave --json out"
        )
    before = _before(options)
    progress = Progress(experiment) if experiment.search is None else SearchProgress(experiment)
    # Ray prints what it has to say about lost workers to standard output, which is for the result.
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
            say=progress.say,
        )
    if isinstance(progress, SearchProgress):
        print(_findings(run, run.path / "figures"))
    else:
        _finish(run, experiment, options, progress, before)
    return 0


def _before(options: argparse.Namespace) -> Snapshot | None:
    """What a run that goes on has done before."""
    return (
        Run.open(options.resume).load().snapshot
        if options.resume and Run(options.resume).checkpoints
        else None
    )


def _report(options: argparse.Namespace) -> int:
    print(_findings(Run.open(options.run), options.figures))
    return 0


def _findings(run: Run, figures: Path | None) -> str:
    # Optuna, Matplotlib and scikit-learn, which training does without.
    from genkidama.tuning.report import report
    from genkidama.tuning.storage import storage_url

    settings = run.experiment.search
    if settings is None:
        raise ConfigurationError(f"{run.path}: is no search; see `genkidama evaluate {run.path}`")
    return report(
        storage_url(settings.storage, run.path), run.path.absolute().name, figures, str(run.path)
    )


def _json(value: dict[str, Any]) -> str:
    return msgspec.json.encode(
        value
    ).decode()  # a NaN as null: Python's own encoder would write what is no JSON


if __name__ == "__main__":
    sys.exit(main())
