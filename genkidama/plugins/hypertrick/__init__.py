"""Asynchronous search for hyperparameters: HyperTrick (Heinrich and Frosio, arXiv 1902.02725),
its rivals, with study and report.

`genkidama search FILE.toml` runs a search on real machines (`docs/notes/hypertrick.md`).
`studies/hypertrick/` simulates it.
"""

from __future__ import annotations

from typing import Any

from genkidama.cli.options import (
    ALLOW,
    DEMONSTRATIONS,
    OUT,
    SEED,
    WEIGHTS_FROM,
    Verb,
    file,
    flag,
    number,
    option,
    path,
    setting,
)
from genkidama.config.plugin import Plugin

PLUGIN = Plugin(
    sections={"search": "genkidama.plugins.hypertrick.settings:SearchSettings"},
    checks={"search": "genkidama.plugins.hypertrick.settings:check"},
    status_parts={"search": "genkidama.plugins.hypertrick.status:SearchStatus"},
    trials={"search": "genkidama.plugins.hypertrick.trial_store:TrialStore"},
    verbs={
        "search": "genkidama.plugins.hypertrick:SEARCH",
        "report": "genkidama.plugins.hypertrick:REPORT",
    },
    run_methods={"report": "genkidama.plugins.hypertrick.report:report_of"},
    exports={
        "HyperTrick": "genkidama.plugins.hypertrick.rule:HyperTrick",
        "HyperTrickPruner": "genkidama.plugins.hypertrick.pruner:HyperTrickPruner",
        "Verdict": "genkidama.plugins.hypertrick.rule:Verdict",
        "search": "genkidama.plugins.hypertrick.local_search:search",
    },
)

SEARCH = Verb(
    "search for hyperparameters",
    "Searches for hyperparameters, with HyperTrick or what `search.method` says.",
    (
        file("an experiment with a [search] (not needed with --resume)"),
        number("--children", "child processes on this machine, one trial each (default: 2)"),
        number(
            "--cores",
            "core processes of each child (default: all CPU cores, divided among the children)",
        ),
        option(
            "--listen",
            "let children on other machines take part, as 0.0.0.0:8765",
            metavar="HOST:PORT",
        ),
        SEED,
        OUT,
        WEIGHTS_FROM,
        DEMONSTRATIONS,
        path("--resume", "continue this search"),
        ALLOW,
        setting("search.trials=100"),
        flag("--no-figures", "draw nothing at the end"),
    ),
    (
        ("genkidama search lunarlander/search", "an example, by its name"),
        (
            "genkidama parent mine.toml --out runs/search",
            "on other machines, each with genkidama join; then genkidama report",
        ),
        ("genkidama search --resume runs/search", "continue that search"),
    ),
    run="genkidama.plugins.hypertrick:run_search",
    starts_run=True,
)

REPORT = Verb(
    "report on a search, while it runs or afterwards",
    "Reports on a search.",
    (
        path("run", "a search's run directory"),
        path("--figures", "draw the figures there (PNG and SVG)"),
    ),
    (("genkidama report runs/search --figures figures", "the text, and the figures as files"),),
    run="genkidama.plugins.hypertrick:run_report",
)


def run_search(options: Any) -> int:
    from genkidama.cli.progress import Progress
    from genkidama.cli.verbs import closing_display, experiment_of, say_reason
    from genkidama.plugins.hypertrick.local_search import search
    from genkidama.runs.run import Run
    from genkidama.runs.warm_start import found_weights
    from genkidama.runtime.forkserver import prefork

    if options.weights is not None:
        options.weights = found_weights(options.weights)
    experiment = experiment_of(options, "what is searched?")
    if options.weights is not None:
        experiment = experiment.with_settings({"parent.start": str(options.weights)})
    prefork()
    progress = Progress(experiment)
    if options.resume is not None:  # whose history is not told again
        progress.status = Run.open(options.resume).status()
    with closing_display(progress):
        run = search(
            experiment,
            children=options.children,
            cores=options.cores,
            listen=options.listen,
            out=options.out,
            resume=options.resume,
            watch=progress,
            sinks=getattr(options, "sinks", ()),
            say=progress.say,
        )
    say_reason(progress)
    print(run.report(None if options.no_figures else run.path / "figures"))
    return 0


def run_report(options: Any) -> int:
    from genkidama.runs.run import Run

    print(Run.open(options.run).report(options.figures))
    return 0
