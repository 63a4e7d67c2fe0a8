"""Hub: trained policies go to the Hugging Face Hub, and training begins with those from there."""

from __future__ import annotations

from genkidama.config.plugin import Plugin

PLUGIN = Plugin(
    verbs={"share": "genkidama.plugins.hub.verbs:SHARE"},
    weights={"hub": "genkidama.plugins.hub.repository:fetch"},
    run_methods={"share": "genkidama.plugins.hub.repository:share"},
)
