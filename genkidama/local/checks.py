"""What `train`, `search` and `launch` check before a run directory is made."""

from __future__ import annotations

from genkidama.errors import ConfigurationError
from genkidama.experiment import Experiment

__all__ = ["check_search"]


def check_search(experiment: Experiment) -> None:
    """Checks that there is something to search.

    Raises:
        ConfigurationError: the experiment has no `[search]`.
    """
    if experiment.search is None:
        raise ConfigurationError(
            f"{experiment.name}: has no [search]; "
            "say what to vary, as `genkidama examples lunarlander/search` shows"
        )
