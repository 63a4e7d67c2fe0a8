"""Limits of connections and of their traffic, as counts and rates. Pure.

Laws of this file:
- A connection beyond a limit is refused at once, and may retry.
- No address can use up the room of all others.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass

from genkidama.config.sections import ParentSettings
from genkidama.errors import ConfigurationError, ProtocolError
from genkidama.protocol.tokens import is_loopback

#: Connections between their first byte and their hello, in all and from one address.
#: `parent.max_per_address` raises both: see `entering_of_one`.
ENTERING = 512
ENTERING_OF_ONE = 128

#: HTTP answers under way that are sent in pieces, in all and to one address.
ANSWERS = 64
ANSWERS_OF_ONE = 16

#: Viewers of the run's page, in all and from one address. They take no child's place.
VIEWERS = 64
VIEWERS_OF_ONE = 32

#: The bits of an IPv6 address that name a network; its owner chooses the rest.
_NETWORK_BITS = 64


@dataclass(eq=False)
class ConnectionSlot:
    """One connection, from its first byte on."""

    #: Its address, or the network of that: see `place_of`.
    place: str
    #: Whether it has yet to say hello.
    entering: bool = True
    #: Whether it is a viewer of the run's page.
    watching: bool = False
    #: Whether it is being sent a large answer.
    answered: bool = False
    gone: bool = False


class ConnectionLimits:
    """Counts connections, and refuses those beyond the limits.

    `children` may have said hello, and `limit_of_one` of them from one place. A quarter of that,
    and at least `ENTERING_OF_ONE`, may be before their hello.
    """

    def __init__(self, children: int, limit_of_one: int) -> None:
        self._limit_of_one = limit_of_one
        self._entering_of_one = max(ENTERING_OF_ONE, limit_of_one // 4)
        # Four places may be this busy at once, so one leaves room for others.
        self._entering_limit = max(ENTERING, 4 * self._entering_of_one)
        self.limit = children + self._entering_limit
        self._open: Counter[str] = Counter()
        self._entering: Counter[str] = Counter()
        self._watching: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()

    def __len__(self) -> int:
        """The number of open connections."""
        return self._open.total() + self._watching.total()

    def enter(self, host: str) -> ConnectionSlot:
        """Admits a connection from this address; a ProtocolError if there are too many."""
        place = place_of(host)
        for count, limit, what in (
            (self._open.total(), self.limit, "connections are open"),
            (self._open[place], self._limit_of_one, f"connections of {place} are open"),
            (self._entering.total(), self._entering_limit, "connections have not said hello yet"),
            (self._entering[place], self._entering_of_one, f"of {place} have not said hello yet"),
        ):
            if count >= limit:
                raise ProtocolError("full", f"{limit} {what}; it may come again")
        self._open[place] += 1
        self._entering[place] += 1
        return ConnectionSlot(place)

    def settle(self, slot: ConnectionSlot) -> None:
        """Notes that its hello was accepted."""
        if slot.entering:
            slot.entering = False
            _take_one(self._entering, slot.place)

    def watch(self, slot: ConnectionSlot) -> None:
        """Notes that it is a viewer of the run's page; a ProtocolError if too many watch."""
        place = slot.place
        for count, limit, what in (
            (self._watching.total(), VIEWERS, "viewers watch already"),
            (self._watching[place], VIEWERS_OF_ONE, f"viewers of {place} watch already"),
        ):
            if count >= limit:
                raise ProtocolError("full", f"{limit} {what}; close a page elsewhere")
        self.settle(slot)
        slot.watching = True
        _take_one(self._open, place)
        self._watching[place] += 1

    def answer(self, slot: ConnectionSlot) -> None:
        """Notes that it is sent a large answer, until it is gone; a ProtocolError if too many."""
        place = slot.place
        for count, limit, what in (
            (self._answered.total(), ANSWERS, "large answers are under way"),
            (self._answered[place], ANSWERS_OF_ONE, f"large answers to {place} are under way"),
        ):
            if count >= limit:
                raise ProtocolError("full", f"{limit} {what}; ask again when one has been read")
        slot.answered = True
        self._answered[place] += 1

    def leave(self, slot: ConnectionSlot) -> None:
        """Frees its slot; a second call changes nothing."""
        if not slot.gone:
            if slot.answered:
                _take_one(self._answered, slot.place)
            self.settle(slot)
            slot.gone = True
            _take_one(self._watching if slot.watching else self._open, slot.place)


class TokenBucket:
    """A rate, an amount a second, with bursts."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._owed = 0.0
        self._since = now

    def spend(self, amount: float, now: float) -> float:
        """Spends an amount; returns the seconds until it is allowed, 0 if it is already."""
        earned = self._rate * (now - self._since)
        self._since = now
        self._owed = max(0.0, self._owed + amount - earned)
        return max(0.0, (self._owed - self._burst) / self._rate)


def place_of(host: str) -> str:
    """The part of an address that its owner cannot choose: of IPv6, the network."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address), _NETWORK_BITS), strict=False))
    return host


def check_exposed(settings: ParentSettings, host: str) -> None:
    """Checks that a parent that listens beyond this machine has TLS and tokens."""
    missing = [] if settings.tokens_file else ["tokens (parent.tokens_file)"]
    if not settings.certificate_file:
        missing.append("TLS (parent.certificate_file, parent.key_file)")
    if missing and not settings.open and not is_loopback(host):
        raise ConfigurationError(
            f"the parent would let other machines in at {host} without {' and '.join(missing)}; "
            "docs/security.md makes them in five minutes, "
            "and parent.open = true does without them in a network that you trust"
        )


def _take_one(counter: Counter[str], place: str) -> None:
    counter[place] -= 1
    if not counter[place]:
        del counter[place]
