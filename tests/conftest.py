"""Settings of all tests.

Hypothesis tries the same examples every time, so that a red test stays red until somebody mends it.
Ctrl-C is heard, wherever the tests were started.
"""

from __future__ import annotations

import signal
import sys

from hypothesis import settings

from genkidama.system.console import configure_logging

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("ci")

# A shell without job control starts what runs in its background deaf to Ctrl-C, and a test's
# processes would be deaf, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Log lines go to standard error, as they do in every command.
configure_logging()


def pytest_collection_finish() -> None:
    """One thread for torch, as every process of ours has: others test on the same machine."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
