"""Notices of a run to a phone or a chat: ntfy, Slack, Home Assistant, or any webhook."""

from __future__ import annotations

import os

from genkidama.cli.options import Follower, option
from genkidama.config.plugin import Plugin

#: The parent, mostly another process, reads the addresses there: they are in no file of the run.
VARIABLE = "GENKIDAMA_NOTIFY"

PLUGIN = Plugin(
    observers={"notify": "genkidama.plugins.notify.notifier:observer"},
    followers={"notify": "genkidama.plugins.notify:NOTIFY"},
)


def _remember(address: str) -> str:
    """Checks an address, and adds it to the environment."""
    from genkidama.plugins.notify.posting import service_at

    service_at(address)
    os.environ[VARIABLE] = " ".join([*os.environ.get(VARIABLE, "").split(), address])
    return address


NOTIFY = Follower(
    (
        option(
            "--notify",
            "post a notice there when the run begins, improves, ends or is in trouble: ntfy, "
            "Slack, Home Assistant, any webhook; repeatable (docs/notes/notify.md)",
            type=_remember,
            metavar="URL",
        ),
    ),
    of_parents=True,
)
