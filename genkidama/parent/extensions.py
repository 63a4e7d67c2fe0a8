"""Base classes of the parts that plug-ins add to a parent.

A parent has one store, and any number of companions and observers. A plug-in names its own in the
tables of `genkidama.config.plugin`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from websockets.http11 import Request, Response

from genkidama.config.experiment import Experiment
from genkidama.parent.connection import Connection
from genkidama.protocol.shard import Shard
from genkidama.server.events import Event, Resumed, Started
from genkidama.server.parameter_server import ParameterServer
from genkidama.server.trial import Trials

if TYPE_CHECKING:
    from genkidama.parent.run_writer import RunWriter


class Companion:
    """A process beside the parent, from the run's beginning to its end.

    The hook `companions` has functions `companion(parent) -> Companion | None`. They are asked when
    the parent listens and its directory is open, before any child comes.
    """

    async def start(self) -> None:
        """Starts it.

        Raises:
            GenkidamaError: it cannot start; `stop` is called.
        """

    def feed(self) -> None:
        """Reacts to a push that has been applied, before the next is handled."""

    async def stop(self) -> None:
        """Ends it, however far it has come."""


class Observer:
    """A reader of the run's events, which may also answer HTTP on the parent's port.

    The hook `observers` has functions `observer(parent) -> Observer | None`. They are asked when
    the parent listens and knows its directory.
    """

    def links(self, host: str, port: int) -> dict[str, str]:
        """Addresses to log when the parent listens there, by their names."""
        return {}

    def take(self, events: Sequence[Event]) -> None:
        """Reads new events, oldest first. The parent's status has them already."""

    def answer(self, connection: Connection, request: Request) -> Response | None:
        """The answer to an HTTP request; None if the request is none of its own.

        If `connection.served_by` is set here, it serves the websocket that follows.
        """
        return None

    def end(self) -> None:
        """Says goodbye to its readers: the run is over, or the parent goes away."""

    async def finish(self) -> None:
        """Ends, within seconds: everything is written, and `take` is called no more."""


class RunStore(Protocol):
    """Keeps on disk the weights that a run trains.

    The hook `trials` has subclasses, each under the name of the section that asks for it. Without
    one of these sections a run has the store `genkidama.parent.checkpointer.Checkpointer`.

    Args:
        server: whose trials it keeps.
        out: the run's directory.
        journal: its history.
    """

    def __init__(self, server: ParameterServer, out: Path, journal: RunWriter) -> None: ...

    @staticmethod
    def make_trials(experiment: Experiment, shard: Shard) -> Trials:
        """The trials of a new run.

        Raises:
            ConfigurationError: the experiment cannot be run so.
        """
        ...

    def restore(self, now: float) -> Resumed | Started | None:
        """Resumes the run in the directory, or begins one with the weights of `parent.start`; None
        if there is neither.

        Raises:
            ConfigurationError: it is a run of another network or rule.
            EnvironmentFailure: the directory cannot be written.
        """

    def after_push(self) -> bool:
        """Copies what must be copied before the next push. Returns `due`."""
        ...

    def forget_files(self) -> None:
        """Takes note that the files were deleted; `keep` writes them anew."""

    @property
    def due(self) -> bool:
        """True if `keep` has something to write at once."""
        ...

    async def keep(self, now: float) -> None:
        """Writes what is due. To be called often, and never twice at the same time."""

    async def finish(self, now: float) -> None:
        """Writes the rest and closes what is open.

        Raises:
            EnvironmentFailure: something cannot be written.
        """

    def close(self) -> None:
        """Closes what is open and writes nothing, for a parent that could not start."""
