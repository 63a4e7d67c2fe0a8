"""The option `--notify` of each verb that starts a run or holds its parent."""

from __future__ import annotations

import argparse
import os
from typing import Any

from genkidama.cli.options import Follower, option
from genkidama.plugins.notify import VARIABLE


class _Remember(argparse.Action):
    """Checks an address, and adds it to the environment."""

    def __call__(self, _: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        from genkidama.plugins.notify.posting import service_at

        service_at(values)
        os.environ[VARIABLE] = " ".join([*os.environ.get(VARIABLE, "").split(), values])


NOTIFY = Follower(
    (
        option(
            "--notify",
            "post a notice there when the run begins, improves, ends or is in trouble: ntfy, "
            "Slack, Home Assistant, any webhook; repeatable (docs/notify.md)",
            action=_Remember,
            default=argparse.SUPPRESS,
            metavar="URL",
        ),
    ),
    of_parents=True,
)
