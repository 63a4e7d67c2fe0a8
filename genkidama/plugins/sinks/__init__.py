"""Sinks: TensorBoard, W&B, MLflow and trackio receive the figures of a run."""

from __future__ import annotations

from genkidama.config.plugin import Plugin

PLUGIN = Plugin(
    verbs={"export": "genkidama.plugins.sinks.verbs:EXPORT"},
    followers={"sinks": "genkidama.plugins.sinks.verbs:SINKS"},
)
