"""Policies on a screen: window, overlay, film, explanation."""

from __future__ import annotations

from genkidama.config.plugin import Plugin

PLUGIN = Plugin(
    verbs={"play": "genkidama.plugins.render.verbs:PLAY"},
    run_methods={"video": "genkidama.plugins.render.playback:play"},
)
