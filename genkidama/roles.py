"""What each child is told of the experiment beside the others: its role, and where the replay is.
Pure.

Laws of this file:
- A child has the role that it asks for, as its machine's own settings say. Otherwise it gets the
  one that is furthest below its share of `child.roles` among the children that are connected.
- Whoever returns under the same name keeps its role. A parent that has started again hears it from
  the child.
- A child exchanges freely where `child.exchange` counts what it lacks: updates, or episodes.
- An engine's address is told to children, and stands in no file.
"""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy
from typing import Any
from urllib.parse import urlsplit

import msgspec

from genkidama.errors import ConfigurationError, ProtocolError
from genkidama.experiment import Experiment
from genkidama.messages import Hello

__all__ = ["Roles", "at_its_own_pace", "reachable"]

#: Beyond so many, the names of children that are gone are forgotten.
_MOST_NAMES = 4096


class Roles:
    """Who does what.

    Args:
        experiment: the settings of all.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._list = experiment.child.roles
        self._of: dict[str, str] = {}
        #: Where the replay is, as settings of `[replay]`; empty where children have their own.
        self.replay: dict[str, Any] = {}

    def told(
        self, hello: Hello, experiment: dict[str, Any], connected: Collection[str]
    ) -> dict[str, Any]:
        """The experiment as this child has to know it.

        Args:
            hello: what the child has said.
            experiment: that of its trial, which stays as it is.
            connected: all children that are, this one included.

        Raises:
            ProtocolError: the child wants a role that the experiment has no room for.
        """
        name = hello.name
        plain = set(self._list) == {"bundle"}
        role = hello.role or self._of.get(name) or self._next(name, connected)
        if plain and role == "bundle" and not self.replay:
            self._of.pop(name, None)
            return experiment
        told = deepcopy(experiment)
        told["replay"].update(self.replay)
        told["child"]["roles"] = [role]
        if role == hello.role:
            try:
                Experiment.from_dict(told, source=f"child {name!r} with role = {role!r}")
            except ConfigurationError as error:
                raise ProtocolError("role", str(error)) from None
        if len(self._of) >= _MOST_NAMES:
            self._of = {name: role for name, role in self._of.items() if name in connected}
        self._of[name] = role
        return told

    def pushing(self, joined: Collection[str]) -> int:
        """How many of these children bring something to learn from; at least 1."""
        if not self._of:  # asked with each push, and roles are rare
            return len(joined) or 1
        return max(1, sum(self._of.get(name) != "act" for name in joined))

    def _next(self, name: str, connected: Collection[str]) -> str:
        there = [self._of[other] for other in connected if other != name and other in self._of]
        return min(self._list, key=lambda role: there.count(role) / self._list.count(role))


def reachable(experiment: Experiment, parent: str) -> Experiment:
    """The same, its engine's host named: one without a name is on the parent's machine.

    Args:
        parent: `ws://HOST:PORT`.
    """
    scheme, found, rest = experiment.replay.url.partition("://")
    user, at, place = rest.rpartition("@")
    if not found or not (place.startswith((":", "/")) or not place):
        return experiment
    host = urlsplit(parent).hostname or "127.0.0.1"
    named = f"[{host}]" if ":" in host else host
    replay = msgspec.structs.replace(experiment.replay, url=f"{scheme}://{user}{at}{named}{place}")
    return msgspec.structs.replace(experiment, replay=replay)


def at_its_own_pace(experiment: Experiment) -> Experiment:
    """The same for a child whose role brings nothing that `child.exchange` counts: a free one."""
    child = experiment.child
    lacking = {"act": "update", "learn": "episode"}.get(experiment.role)
    if child.exchange != lacking:
        return experiment
    seconds = child.exchange_seconds or (0.0 if child.exchange_steps else 1.0)
    replace = msgspec.structs.replace
    return replace(experiment, child=replace(child, exchange="free", exchange_seconds=seconds))
