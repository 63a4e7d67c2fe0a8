"""Notices of a run to a phone or a chat: ntfy, Slack, Home Assistant, or any webhook."""

from __future__ import annotations

from genkidama.config.plugin import Plugin

#: The parent, mostly another process, reads the addresses there: they are in no file of the run.
VARIABLE = "GENKIDAMA_NOTIFY"

PLUGIN = Plugin(
    observers={"notify": "genkidama.plugins.notify.notifier:observer"},
    followers={"notify": "genkidama.plugins.notify.verbs:NOTIFY"},
)
