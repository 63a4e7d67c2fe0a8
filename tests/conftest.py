"""Settings of all tests.

Hypothesis tries the same examples every time, so that a red test stays red until somebody mends it.
At night it tries others: `pytest --hypothesis-profile=night` prints how to play a red one again.
Ctrl-C is heard, wherever the tests were started.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

from genkidama.runtime.log import configure_logging

#: How many examples a property is tried on, where its test does not say: EXAMPLES=1000 tries more.
EXAMPLES = int(os.environ.get("EXAMPLES", "50"))

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=EXAMPLES)
settings.register_profile(
    "night",
    deadline=None,
    max_examples=20 * EXAMPLES,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci")

# A shell without job control starts what runs in its background deaf to Ctrl-C, and a test's
# processes would be deaf, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Log lines go to standard error, as they do in every command.
configure_logging()


#: Files whose tests start whole programs. They come first, so that no worker ends with one of them
#: while the others have nothing to do. From the longest on.
LONG = (
    "child/test_orchestrator.py",
    "plugins/ga3c/test_backend.py",
    "simulation/test_shelf.py",
    "test_owning_end_to_end.py",
    "test_saved_end_to_end.py",
    "test_extension_documents.py",
    "test_end_to_end.py",
    "plugins/ray/test_launch.py",
    "plugins/doctor/test_command.py",
    "plugins/actors/test_learner_process.py",
    "plugins/hypertrick/test_search_run.py",
    "plugins/dashboard/test_playing.py",
    "runs/test_evaluation.py",
    "child/test_main.py",
    "child/test_core.py",
    "plugins/hypertrick/test_search.py",
    "test_ga3c_end_to_end.py",
    "runtime/test_forkserver.py",
    "cli/test_cluster.py",
    "plugins/hypertrick/test_figures.py",
    "learning/test_environments.py",
    "plugins/hypertrick/test_storages.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, each in its own order."""
    places = {f"tests/{name}": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(LONG)))


def pytest_collection_finish() -> None:
    """One thread for torch, as every process of ours has: others test on the same machine.

    Imported modules are some million objects that stay. No later collection looks at them.
    """
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
