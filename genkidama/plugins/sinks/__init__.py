"""Carries the figures of a run to tools that people watch: TensorBoard, W&B, MLflow, trackio.

Here a run's lines become points, and a thread for each sink hands them on. Nothing here slows a
run: a sink that fails or hangs is said once and dropped.
"""

from __future__ import annotations

from genkidama.config.plugin import Plugin

__all__ = ["PLUGIN"]

PLUGIN = Plugin()
