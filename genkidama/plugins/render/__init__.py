"""Policies on a screen: window, overlay, film, explanation."""

from __future__ import annotations

from genkidama.config.plugin import Plugin

__all__ = ["PLUGIN"]

PLUGIN = Plugin()
