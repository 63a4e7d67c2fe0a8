"""The parent or a child as the driver sees it: its actor, and the one question under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from genkidama.errors import GenkidamaError
from genkidama.launch.node import Host
from genkidama.local.processes import losses
from genkidama.pacing import RestartPolicy

__all__ = ["Part"]


@dataclass
class Part:
    """One part of a run on the cluster.

    All times are on the driver's clock, in seconds.
    """

    ray: Any
    name: str
    kind: type[Host]
    #: What Ray is told of its actor: CPUs, GPUs, where it belongs.
    options: dict[str, Any]
    #: What its actor is made with.
    arguments: tuple[Any, ...] = ()
    actor: Any = None
    #: The question that it has not answered yet, and what is done with the answer.
    call: Any = None
    then: Callable[[Any], None] | None = None
    #: When it is to be asked again or to get a new actor.
    due: float = 0.0
    #: Since when it could have begun with this actor.
    since: float = 0.0
    #: Of a child: the parent's address for which its process was started; empty without a process.
    url: str = ""
    #: Whether it has begun on a node.
    placed: bool = False
    #: Whether it was said that it waits for a node.
    said: bool = False
    #: How much of its log is here.
    log: int = 0
    #: How many actors it has had.
    actors: int = 0
    policy: RestartPolicy = field(default_factory=losses)
    #: Why there will be no other actor.
    failure: GenkidamaError | None = None

    @property
    def cores(self) -> int:
        """CPUs and core processes of a child."""
        return int(self.options["num_cpus"])

    @property
    def child_name(self) -> str:
        """A new one for each actor: the parent may still think that a lost one is there."""
        return self.name if self.actors == 1 else f"{self.name}-{self.actors}"

    def begin(self, now: float) -> None:
        """Asks Ray for an actor."""
        remote = self.ray.remote(self.kind).options(max_restarts=0, **self.options)
        self.actor = remote.remote(*self.arguments)
        self.actors += 1
        self.since = now
        self.due = 0.0
        self.log = 0
        self.url = ""
        self.placed = False
        self.said = False

    def ask(self, then: Callable[[Any], None], method: str, *arguments: Any) -> None:
        """Calls a method of its actor. `then` will get what it answers."""
        self.then = then
        self.call = getattr(self.actor, method).remote(*arguments)

    def take(self) -> None:
        """Passes on the answer, which has come.

        Raises:
            RayError: it is the end of the actor.
        """
        call = self.call
        then = self.then
        self.call = None
        self.then = None
        assert then is not None
        then(self.ray.get(call))

    def kill(self) -> None:
        """Ends its actor, and so its process."""
        actor = self.actor
        self.actor = None
        self.call = None
        self.then = None
        if actor is not None:
            self.ray.kill(actor)
