"""Figures of runs, drawn from their directories with Matplotlib."""

from __future__ import annotations

from genkidama.config.plugin import Plugin

PLUGIN = Plugin(
    verbs={"plot": "genkidama.plugins.figures.verbs:PLOT"},
    run_methods={"plot": "genkidama.plugins.figures.plots:draw_runs"},
)
