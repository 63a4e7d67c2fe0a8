"""A sharded parent: several parents hold slices of the vector. Pure.

Laws of this file:
- k shards hold k slices of the trained numbers, in order and of nearly the same length.
- Running statistics belong together, so the last shard holds all of them.
- A single shard holds everything.
- The first shard ends the run for all. Children carry its proof, which no child can forge.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from genkidama.errors import ConfigurationError
from genkidama.protocol.vector import Signature

#: A shard as people and messages write it.
PART = r"^[1-9]\d{0,2}/[1-9]\d{0,2}\Z"
MOST_PARTS = 999

#: The environment variable with the secret that the shards of a parent share, and no child has.
SECRET = "GENKIDAMA_PARTS_SECRET"  # noqa: S105


@dataclass(frozen=True)
class Shard:
    """One of `count` shards of a parent. The first, whose number is 1, decides for all."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Part 2 of 3 of `"2/3"`."""
        number, _, count = text.partition("/")
        if not re.match(PART, text) or int(number) > int(count):
            raise ConfigurationError(
                f"--shard {text}: expected I/K with I from 1 to K, and K at most {MOST_PARTS}; "
                "as 2/3 for the second of three parts"
            )
        return cls(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def is_first(self) -> bool:
        return self.number == 1

    def numbers(self, signature: Signature) -> slice:
        """The slice of this shard in a vector of this signature."""
        trained = signature.size - signature.statistics
        stop = trained * self.number // self.count
        return slice(
            trained * (self.number - 1) // self.count,
            signature.size if self.number == self.count else stop,
        )

    def of(self, signature: Signature) -> Signature:
        """The signature of this shard. An entry of which it holds a piece is flat."""
        return signature if self.count == 1 else _cut(self, signature)


#: A parent that is not sharded.
WHOLE = Shard()


def addresses(parent: str) -> list[str]:
    """The addresses of all shards, which are separated by commas."""
    return [address.strip() for address in parent.split(",")]


def fingerprints(fingerprint: str, addresses: Sequence[str], parent: str) -> list[str]:
    """The fingerprint of the certificate at each address.

    Args:
        fingerprint: one for all shards of a parent, or one for each, with commas in between.
        addresses: of the shards.
        parent: the same, as the user wrote them.

    Raises:
        ConfigurationError: there are more or fewer fingerprints than shards.
    """
    each = fingerprint.split(",")
    if len(each) == 1:
        return each * len(addresses)
    if len(each) != len(addresses):
        raise ConfigurationError(
            f"fingerprint: names {len(each)} certificates, and parent = {parent!r} "
            f"{len(addresses)} parts; give one for all parts, or one for each"
        )
    return each


def end_proof(secret: str, stop: Mapping[str, Any], reason: str) -> str:
    """The proof that a shard with the secret has ended the run: HMAC-SHA256, hexadecimal.

    Without a secret it is empty. The run's stop conditions are part of it, so that it does not end
    a run that is continued with others.
    """
    if not secret:
        return ""
    words = json.dumps([stop, reason], sort_keys=True).encode()
    return hmac.new(secret.encode(), words, hashlib.sha256).hexdigest()


@lru_cache(maxsize=8)
def _cut(part: Shard, signature: Signature) -> Signature:
    mine = part.numbers(signature)
    entries: list[tuple[str, tuple[int, ...]]] = []
    start = 0
    for name, shape in signature.entries:
        size = prod(shape)
        held = min(start + size, mine.stop) - max(start, mine.start)
        if held == size:
            entries.append((name, shape))
        elif held > 0:
            entries.append((name, (held,)))
        start += size
    return Signature(tuple(entries))
