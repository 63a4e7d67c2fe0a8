"""What of a replay for all children fits together, and with which settings. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from genkidama.errors import ConfigurationError

if TYPE_CHECKING:
    from genkidama.config.experiment import Experiment

__all__ = ["check_replay"]


def check_replay(experiment: Experiment, source: str) -> None:
    """Checks `replay.url` and `child.roles` against the other settings.

    Args:
        experiment: all settings.
        source: where they come from, as an error names it.

    Raises:
        ConfigurationError: they do not fit together.
    """
    replay, roles = experiment.replay, experiment.child.roles
    local = replay.url == "local"
    key = f"{source}: replay.url = {_shown(replay.url)!r}"
    if not local and not replay.steps:
        raise ConfigurationError(
            f"{key}: with replay.steps = 0 nothing is kept there; set it to how many steps all "
            "children keep together"
        )
    if not local and experiment.search is not None:
        raise ConfigurationError(
            f"{key}: in a search each child trains a trial of its own, so there is nothing to "
            "share; set it to 'local'"
        )
    if set(roles) == {"bundle"}:
        return
    key = f"{source}: child.roles = {list(roles)}"
    if local:
        raise ConfigurationError(
            f"{key}: children that only act, or only learn, share a replay; "
            "set replay.url to 'embedded'"
        )
    environment = experiment.environment
    for name in ("normalize_observations", "normalize_rewards"):
        if getattr(environment, name):
            raise ConfigurationError(
                f"{key}: the statistics of environment.{name} = True come from children that act "
                "and learn; set it to false, or child.roles to ['bundle']"
            )


def _shown(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://…@{rest.rpartition('@')[2]}" if "@" in rest else url
