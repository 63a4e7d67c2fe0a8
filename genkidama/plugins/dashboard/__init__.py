"""The web page of a run: status, feed, metrics, gallery of finished runs."""

from __future__ import annotations

from genkidama.config.plugin import Plugin

PLUGIN = Plugin(
    observers={"dashboard": "genkidama.plugins.dashboard.endpoint:observer"},
    verbs={
        "top": "genkidama.plugins.dashboard.verbs:TOP",
        "serve": "genkidama.plugins.dashboard.verbs:SERVE",
    },
)
