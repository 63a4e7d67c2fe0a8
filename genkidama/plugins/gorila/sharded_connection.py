"""A child and its whole parent: a conversation with each part of it, all at the same time.

Laws of this file:
- A parent in one piece is a parent with one part.
- Weights go out in slices, one to each part, and come back as one vector.
- At its start a child needs all parts. Afterwards a part that is not there holds up nobody: its
  slice goes on as the child has it, and all its work waits for it.
- All parts are told of all work. The first counts for all: its progress is the run's, and when it
  ends the run, the others are told.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import structlog

from genkidama.child.backend import Backend, GradientBackend, NewsBackend, notify_reply
from genkidama.child.credentials import one_for_each
from genkidama.child.parent_connection import ParentConnection
from genkidama.child.progress_log import ExchangeLog
from genkidama.child.transport import FAILURES, Transport
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.protocol.session import (
    Begin,
    BlendReply,
    Decision,
    LeftOut,
    Over,
    RequestRefused,
    Reset,
    Session,
    Train,
)
from genkidama.protocol.shard import Shard, addresses
from genkidama.protocol.vector import Signature, Vector
from genkidama.runtime.machine import machine_name

__all__ = ["ShardedConnection", "gather_all", "wait_any"]


# ------------------------------------------------------------------------------------------------
# Several works at the same time: what all of them give, or the end of the first.

T = TypeVar("T")


async def gather_all(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results, in their order. The first error ends the others and is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def wait_any(works: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Returns when the first has ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end(tasks)


async def _end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancels what still goes on, and waits for its end."""
    going = [task for task in tasks if not task.done()]
    for task in going:
        task.cancel()
    if going:
        await asyncio.wait(going)


#: What each part's machine has for itself.
_FILES = ("parent.tokens_file", "parent.certificate_file", "parent.key_file")
_OWN = ("name", "parent.listen", *_FILES)


log = structlog.get_logger()


class ShardedConnection:
    """What a child and its parent say to each other, for as long as the child lives.

    Args:
        talks: one for each part, in the parts' order.
    """

    def __init__(self, talks: Sequence[ParentConnection]) -> None:
        self._talks = talks
        self._first = talks[0].session
        #: When the last push was answered, as `time.monotonic` tells it; NaN before the first.
        self.exchanged = math.nan
        #: What it says in its log while all goes well.
        self.pulse = ExchangeLog()
        #: Which numbers each part holds; set by `enter`.
        self._numbers: list[slice] = []

    @classmethod
    def with_parent(
        cls,
        parent: str,
        name: str,
        role: str,
        ended: Callable[[], None],
        token: str,
        ca_file: str | None,
        fingerprint: str,
    ) -> ShardedConnection:
        """Those of a child with its parent, or with the parts of it.

        Args:
            parent: `ws://HOST:PORT`, or those of all parts in their order, with commas in between.
            name: unique among the parent's children; empty means the machine's name, numbered if
                that is taken.
            role: as `Session` takes it.
            ended: called when the run is over, or the trial.
            token, ca_file: as `Transport` takes them.
            fingerprint: as `Role` has it.
        """
        places = addresses(parent)
        known = one_for_each(fingerprint, places, parent)
        word = secrets.token_hex(8)
        chosen = name or machine_name()
        talks = []
        for number, (address, trusted) in enumerate(zip(places, known, strict=True), start=1):
            part = Shard(number, len(places))
            session = Session(chosen, word, numbered=not name, parent=address, role=role, part=part)
            uplink = Transport(address, token=token, ca_file=ca_file, fingerprint=trusted)
            talks.append(ParentConnection(uplink, session, ended))
        return cls(talks)

    @property
    def session(self) -> Session:
        """The one with the first part."""
        return self._first

    @property
    def over(self) -> Over | None:
        """Set when the run is over, or the trial."""
        return next((talk.session.over for talk in self._talks if talk.session.over), None)

    @property
    def joined(self) -> bool:
        """Whether pushes may be sent to all parts at present."""
        return all(talk.joined for talk in self._talks)

    @property
    def away(self) -> str:
        """The address of a part that is not joined, or of the first."""
        apart = (talk.session.parent for talk in self._talks if not talk.joined)
        return next(apart, self._first.parent)

    @property
    def problem(self) -> str:
        """Why the parent, or a part of it, is waited for at present; empty while it is not."""
        return next((talk.problem for talk in self._talks if talk.problem), "")

    # Before training.

    async def begin(self) -> Decision:
        """Says hello until all parts say what to train, or that there is nothing left to train.

        Raises:
            GenkidamaError: as `ParentConnection.begin`, or the parts run different experiments.
        """
        decision = await self._talks[0].begin()
        others = self._talks[1:]
        if not others or not isinstance(decision, Train):
            return decision
        for talk in others:
            talk.session.rename_like(self._first)
        await gather_all(_addressed(talk, talk.begin()) for talk in others)
        for talk in others:
            theirs = talk.session.experiment
            if theirs is not None and (difference := _difference(decision.experiment, theirs)):
                raise ConfigurationError(
                    f"{self._first.parent} and {talk.session.parent} run different experiments "
                    f"({difference}); start all parts with the same one"
                )
        return self.over or decision

    async def enter(self, signature: Signature, backend: Backend, cores: int = 0) -> Decision:
        """Joins all parts with so many cores, however long it takes.

        Raises:
            GenkidamaError: as `begin`, or a part has another network.
        """
        self._numbers = [talk.session.part.numbers(signature) for talk in self._talks]
        entering = [_addressed(talk, talk.enter(signature, cores)) for talk in self._talks]
        decisions = await gather_all(entering)
        first = decisions[0]
        begun = [decision for decision in decisions if isinstance(decision, Begin)]
        if len(begun) < len(decisions) or not isinstance(first, Begin):
            return next(each for each in decisions if not isinstance(each, Begin))
        vectors = [decision.vector for decision in begun]
        own = None
        if any(vector is None for vector in vectors) and len(vectors) > 1:
            own = backend.snapshot()  # a part that has lost its slice gets the child's
        return Begin(first.version, first.progress, self._whole(vectors, own), first.steps)

    async def give_back(self, reason: str) -> None:
        """Tells the parent that the trial cannot be trained here, and closes the connections."""
        await gather_all(talk.give_back(reason) for talk in self._talks)

    # During training.

    async def keep(self, signature: Signature) -> None:
        """Enters again whenever a connection is gone, until all is over; errors as `enter`."""
        await gather_all(_addressed(talk, talk.keep(signature)) for talk in self._talks)

    async def exchange(self, backend: Backend) -> None:
        """One push to each part, and the replies. What a part does not hear of is gathered for it.

        Gradients are of no use without the parent, which makes the steps: with them the child waits
        until a part is there.

        Raises:
            GenkidamaError: a part refuses the push for good.
        """
        self._gather(backend)
        gradient = self._gradient(backend)
        while not await self._push(backend, gradient):
            if gradient is None or self.over is not None:
                return
            await wait_any(talk.entered.wait() for talk in self._talks)

    async def leave(self, backend: Backend) -> None:
        """A last push, unless all is over, and a goodbye to each part; errors as `exchange`."""
        if self.over is None:
            self._gather(backend)
            await self._push(backend, self._gradient(backend))
        over = self._first.over.reason if self._first.over else ""
        proof = self._first.proof
        await gather_all(_quietly(talk.leave(over, proof)) for talk in self._talks[1:])
        await self._talks[0].leave()

    async def close(self) -> None:
        """Ends the connections that there are."""
        await gather_all(talk.close() for talk in self._talks)

    # Inside.

    async def _push(self, backend: Backend, gradient: Vector | None) -> bool:
        """Whether a part has answered."""
        if not any(talk.joined for talk in self._talks):
            return False
        vector = backend.snapshot()
        news: NewsBackend | None = backend if self._tells_news(backend) else None  # type: ignore[assignment]
        decisions = await gather_all(
            _addressed(talk, talk.push(piece, slope, news))
            for talk, piece, slope in zip(
                self._talks, self._pieces(vector), self._pieces(gradient), strict=True
            )
        )
        if all(decision is None for decision in decisions):
            return False
        self._carry_out(decisions, vector, backend)
        return True

    def _carry_out(
        self, decisions: list[Decision | None], vector: Vector | None, backend: Backend
    ) -> None:
        """What the replies mean for the weights, of which `vector` was pushed."""
        # Of a push that was sent again, what was sent is older than what the child has now.
        sent = self._whole([_sent(each) for each in decisions], vector)
        found = [
            each.vector if isinstance(each, BlendReply | Reset) else None for each in decisions
        ]
        first = decisions[0]
        if any(isinstance(each, Reset) for each in decisions):
            log.warning(
                "training diverged, going on from the parent's weights",
                child=self._first.name,
                version=self._first.version,
            )
            parent = self._whole(found, vector)
            assert parent is not None
            backend.reset(parent)
        elif any(isinstance(each, BlendReply) for each in decisions):
            self.exchanged = time.monotonic()
            self.pulse.exchanged(self._first.name, self._first.version)
            parent = self._whole(found, sent)
            if parent is not None and sent is None:
                backend.reset(parent)
            elif parent is not None and sent is not None:
                assert self._first.experiment is not None
                backend.blend(sent, parent, self._first.experiment.pull)
        if isinstance(first, BlendReply):
            backend.set_progress(first.progress)
            notify_reply(backend, first.steps, self._first.version)

    def _tells_news(self, backend: Backend) -> bool:
        """Whether newer weights are asked for beside pushes, of a parent in one piece."""
        return len(self._talks) == 1 and hasattr(backend, "pulled")

    def _pieces(self, vector: Vector | None) -> list[Vector | None]:
        """What of a vector goes to each part."""
        if vector is None or len(self._talks) == 1:
            return [vector] * len(self._talks)
        return [vector[numbers] for numbers in self._numbers]

    def _whole(self, pieces: Sequence[Vector | None], own: Vector | None) -> Vector | None:
        """The parts' vectors as one, with the child's own where there is none.

        Returns:
            None if all are missing, or one is and the child has none of its own.
        """
        if len(pieces) == 1:
            return pieces[0]
        found = [piece for piece in pieces if piece is not None]
        if len(found) == len(pieces):
            return np.concatenate(found)
        if not found or own is None:
            return None
        whole = own.copy()
        for numbers, piece in zip(self._numbers, pieces, strict=True):
            if piece is not None:
                whole[numbers] = piece
        return whole

    def _gradient(self, backend: Backend) -> Vector | None:
        experiment = self._first.experiment
        if experiment is None or experiment.pushes != "gradient":
            return None
        gradients: GradientBackend = backend  # type: ignore[assignment]  # `make_backend` saw to it
        return gradients.gradient()

    def _gather(self, backend: Backend) -> None:
        work = backend.take_work()
        self.pulse.worked(work.steps, work.returns)
        left_out = LeftOut()
        for talk in reversed(self._talks):
            left_out = talk.session.add_work(work.steps, work.returns, work.measures)
        if left_out.returns:
            log.warning(
                "returns that are NaN or infinite are not reported",
                child=self._first.name,
                count=left_out.returns,
            )
        if left_out.measures:
            log.warning(
                "measures that the protocol does not permit are not reported",
                child=self._first.name,
                measures=left_out.measures,
            )


def _sent(decision: Decision | None) -> Vector | None:
    """What the parent has blended with, of a push."""
    return decision.sent if isinstance(decision, BlendReply) else None


def _difference(ours: Experiment, theirs: Experiment) -> str:
    """The first setting in which two parts' experiments differ; empty if there is none."""
    mine, other = _settings(ours), _settings(theirs)
    for key in {**mine, **other}:
        if key not in _OWN and mine.get(key) != other.get(key):
            return f"{key} = {mine.get(key)!r} and {other.get(key)!r}"
    return ""


def _settings(experiment: Experiment) -> dict[str, Any]:
    """Its settings by their dotted keys."""
    found: dict[str, Any] = {}
    for name, section in experiment.to_dict().items():
        within = section if isinstance(section, dict) else {"": section}
        found.update({f"{name}.{key}".rstrip("."): value for key, value in within.items()})
    return found


async def _addressed(talk: ParentConnection, work: Coroutine[Any, Any, T]) -> T:
    """The work's result. A part that refuses this child is named."""
    try:
        return await work
    except RequestRefused as refused:
        if talk.session.part.count > 1:
            refused.args = (f"{talk.session.parent}: {refused}",)
        raise


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    with suppress(*FAILURES):
        await work
