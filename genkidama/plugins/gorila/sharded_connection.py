"""ShardedConnection: a child and a parent in several processes, each with a shard of the vector.

Laws of this file:
- Weights go out in slices, one to each shard, and come back as one vector.
- At its start a child needs all shards. Afterwards it continues without a missing shard, whose
  slice stays as it is, and whose share of the work is kept for it.
- All shards receive all work. The first counts for all: its progress is the run's, and when it ends
  the run, the child reports that to the others.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from genkidama.child.backend import NewsBackend, Work
from genkidama.child.parent_connection import ParentConnection
from genkidama.child.transport import FAILURES
from genkidama.config.experiment import Experiment
from genkidama.config.sections import flat
from genkidama.protocol.session import (
    Begin,
    BlendReply,
    Decision,
    LeftOut,
    Over,
    PartsDiffer,
    RequestRefused,
    Reset,
    Session,
    Train,
)
from genkidama.protocol.shard import Shard, addresses, fingerprints
from genkidama.protocol.vector import Signature, Vector

T = TypeVar("T")

#: Settings in which the shards of a parent may differ. Replay and role are the first shard's.
_FILES = ("parent.tokens_file", "parent.certificate_file", "parent.key_file")
_FIRST = ("replay.url", "replay.name", "child.roles")
_OWN = ("name", "parent.listen", *_FILES, *_FIRST)


class ShardedConnection:
    """The connections to all shards of a parent, in their order, as one `ParentConnection`."""

    def __init__(self, shards: Sequence[ParentConnection]) -> None:
        self._shards = shards
        #: The first shard's last reply with weights.
        self._reply = BlendReply(0.0)
        #: The numbers of each shard; set by `enter`.
        self._numbers: list[slice] = []

    @classmethod
    def to(
        cls, parent: str, ended: Callable[[], None], *, fingerprint: str, **options: Any
    ) -> ShardedConnection:
        """As `ParentConnection.to`."""
        many = addresses(parent)
        trusted = fingerprints(fingerprint, many, parent)
        word = secrets.token_hex(8)
        return cls(
            [
                ParentConnection.to(
                    address,
                    ended,
                    **options,
                    fingerprint=trusted[number],
                    shard=Shard(number + 1, len(many)),
                    word=word,
                )
                for number, address in enumerate(many)
            ]
        )

    @property
    def session(self) -> Session:
        """That of the first shard."""
        return self._shards[0].session

    @property
    def over(self) -> Over | None:
        return next((shard.over for shard in self._shards if shard.over), None)

    @property
    def joined(self) -> bool:
        return all(shard.joined for shard in self._shards)

    @property
    def can_push(self) -> bool:
        return any(shard.joined for shard in self._shards)

    @property
    def address(self) -> str:
        """That of a shard that is not joined, or of the first."""
        apart = (shard.address for shard in self._shards if not shard.joined)
        return next(apart, self.session.parent)

    @property
    def problem(self) -> str:
        return next((shard.problem for shard in self._shards if shard.problem), "")

    # Before training.

    async def begin(self) -> Decision:
        decision = await self._shards[0].begin()
        if not isinstance(decision, Train):
            return decision
        others = self._shards[1:]
        for shard in others:
            shard.session.appear_like(self.session)
        await gather_all(_named(shard, shard.begin()) for shard in others)
        for shard in others:
            theirs = shard.session.experiment
            if theirs is not None and (difference := _difference(decision.experiment, theirs)):
                raise PartsDiffer(
                    f"{self.session.parent} and {shard.address} run different experiments "
                    f"({difference}); start all parts with the same one"
                )
        return self.over or decision

    async def enter(
        self,
        signature: Signature,
        cores: int = 0,
        snapshot: Callable[[], Vector | None] = lambda: None,
    ) -> Decision:
        self._numbers = [shard.session.part.numbers(signature) for shard in self._shards]
        entering = [_named(shard, shard.enter(signature, cores)) for shard in self._shards]
        decisions = await gather_all(entering)
        first = decisions[0]
        begun = [decision for decision in decisions if isinstance(decision, Begin)]
        if len(begun) < len(decisions) or not isinstance(first, Begin):
            return next(each for each in decisions if not isinstance(each, Begin))
        vectors = [decision.vector for decision in begun]
        # A shard that has lost its slice gets the child's.
        own = snapshot() if any(vector is None for vector in vectors) else None
        return replace(first, vector=self._whole(vectors, own))

    async def give_back(self, reason: str) -> None:
        await gather_all(shard.give_back(reason) for shard in self._shards)

    # During training.

    async def keep(self, signature: Signature) -> None:
        await gather_all(_named(shard, shard.keep(signature)) for shard in self._shards)

    async def watch(self, seconds: float, alive: Callable[[], None]) -> None:
        """As `ParentConnection.watch`: any shard's answer counts."""
        await gather_all(shard.watch(seconds, alive) for shard in self._shards)

    def gather(self, work: Work) -> LeftOut:
        first, *_ = [shard.gather(work) for shard in self._shards]
        return first

    async def push(
        self, vector: Vector | None, gradient: Vector | None, news: NewsBackend | None = None
    ) -> Decision | None:
        """One push to each shard; their decisions as one. No newer weights are asked for."""
        decisions = await gather_all(
            _named(shard, shard.push(piece, slope))
            for shard, piece, slope in zip(
                self._shards, self._pieces(vector), self._pieces(gradient), strict=True
            )
        )
        return self._combined(decisions, vector)

    async def pull(self, own: Vector) -> Decision | None:
        """θ_P of all shards, or of none; where one has nothing new or is lost, the slice stays."""
        if not all(shard.joined and shard.session.pull() is not None for shard in self._shards):
            return None
        decisions = await gather_all(_named(shard, shard.pull(own)) for shard in self._shards)
        vectors = [each.vector if isinstance(each, BlendReply) else None for each in decisions]
        self._note(decisions)
        return replace(self._reply, sent=None, vector=self._whole(vectors, own))

    def _combined(
        self, decisions: Sequence[Decision | None], vector: Vector | None
    ) -> Decision | None:
        """The shards' decisions about a push of `vector`, as one."""
        self._note(decisions)
        vectors = [
            each.vector if isinstance(each, BlendReply | Reset) else None for each in decisions
        ]
        if any(isinstance(each, Reset) for each in decisions):
            whole = self._whole(vectors, vector)
            assert whole is not None
            return Reset(whole)
        if any(isinstance(each, BlendReply) for each in decisions):
            # A push that was sent again is older than the child's vector.
            parts = [each.sent if isinstance(each, BlendReply) else None for each in decisions]
            sent = self._whole(parts, vector)
            whole = self._whole(vectors, sent)
            return replace(self._reply, sent=sent, vector=whole)
        return next((each for each in decisions if each is not None), None)

    def _note(self, decisions: Sequence[Decision | None]) -> None:
        """Keeps the first shard's reply."""
        if isinstance(decisions[0], BlendReply):
            self._reply = decisions[0]

    async def wait_joined(self) -> None:
        await wait_any(shard.wait_joined() for shard in self._shards)

    async def leave(self) -> None:
        first = self._shards[0]
        over = first.over.reason if first.over else ""
        await gather_all(
            _quietly(shard.leave(over, first.session.proof)) for shard in self._shards[1:]
        )
        await first.leave()

    def renew(self) -> None:
        for shard in self._shards:
            shard.renew()
        self._reply = BlendReply(0.0)

    async def close(self) -> None:
        await gather_all(shard.close() for shard in self._shards)

    # Slices.

    def _pieces(self, vector: Vector | None) -> list[Vector | None]:
        """The slice of a vector for each shard."""
        if vector is None:
            return [None] * len(self._shards)
        return [vector[numbers] for numbers in self._numbers]

    def _whole(self, pieces: Sequence[Vector | None], own: Vector | None) -> Vector | None:
        """The shards' vectors as one, with the child's own numbers for those that are missing. None
        if all are missing, or one is and the child has no numbers of its own."""
        present = [piece for piece in pieces if piece is not None]
        if len(present) == len(pieces):
            return np.concatenate(present)
        if not present or own is None:
            return None
        whole = own.copy()
        for numbers, piece in zip(self._numbers, pieces, strict=True):
            if piece is not None:
                whole[numbers] = piece
        return whole


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
    """Cancels the tasks that have not ended, and waits for their end."""
    pending = [task for task in tasks if not task.done()]
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending)


def _difference(ours: Experiment, theirs: Experiment) -> str:
    """The first setting in which two shards' experiments differ; empty if there is none."""
    mine, other = flat(ours.to_dict()), flat(theirs.to_dict())
    for key in {**mine, **other}:
        if key not in _OWN and mine.get(key) != other.get(key):
            return f"{key} = {mine.get(key)!r} and {other.get(key)!r}"
    return ""


async def _named(shard: ParentConnection, work: Coroutine[Any, Any, T]) -> T:
    """The work's result; a refusal names its shard."""
    try:
        return await work
    except RequestRefused as refused:
        refused.args = (f"{shard.address}: {refused}",)
        raise


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    with suppress(*FAILURES):
        await work
