"""Figures of runs, drawn from their directories with Matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from genkidama.cli.options import Verb, option, path
from genkidama.config.plugin import Plugin

PLUGIN = Plugin(
    verbs={"plot": "genkidama.plugins.figures:PLOT"},
    run_methods={"plot": "genkidama.plugins.figures.plots:draw_runs"},
)

#: The axes of `genkidama.runs.curves`, which imports NumPy.
OVER = ("steps", "seconds", "episodes", "updates")

PLOT = Verb(
    "draw the learning curves of runs",
    "Draws the learning curves and diagnostics of runs, as PNG and SVG; of a single one its "
    "children, too. Runs that differ only in their seeds are one line with a band.",
    (
        path("runs", "run directories, or one search's", nargs="+"),
        option("--over", "the horizontal axis", choices=OVER, default="steps"),
        path(
            "--out", "where to write them (default: figures/, in a single run's directory or here)"
        ),
    ),
    (
        ("genkidama plot runs/first", "one run: learning, children, diagnostics, returns"),
        ("genkidama plot runs/a-* runs/b-* --over seconds", "two settings, several seeds each"),
    ),
    run="genkidama.plugins.figures:run_plot",
)


def run_plot(options: Any) -> int:
    from genkidama.plugins.figures.plots import draw_runs
    from genkidama.runs.run import Run

    runs = [Run.open(path) for path in options.runs]
    if len(runs) == 1:
        paths = runs[0].plot(options.out, options.over)
    else:
        paths = draw_runs(runs, options.out or Path("figures"), options.over)
    print(*paths, sep="\n")
    return 0
