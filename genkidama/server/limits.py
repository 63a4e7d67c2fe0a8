"""Who may come in, and how much each may say: limits, as counts and rates. Pure.

Laws of this file:
- Nobody is waited for. A connection that does not fit is refused at once, and may come again.
- What one address does leaves room for all others.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass

from genkidama.config.sections import ParentSettings
from genkidama.errors import ConfigurationError, ProtocolError
from genkidama.protocol.tokens import is_loopback

__all__ = [
    "ANSWERS",
    "ANSWERS_OF_ONE",
    "ENTERING",
    "ENTERING_OF_ONE",
    "VIEWERS",
    "VIEWERS_OF_ONE",
    "TokenBucket",
    "ConnectionLimits",
    "ConnectionSlot",
    "check_exposed",
    "place_of",
]

#: So many connections may be between their first byte and their hello, in all and from one address.
#: `parent.max_per_address` raises both: see `entering_of_one`.
ENTERING = 512
ENTERING_OF_ONE = 128

#: So many HTTP answers that are sent in pieces may be under way, in all and to one address.
ANSWERS = 64
ANSWERS_OF_ONE = 16

#: So many may watch the run's page, in all and from one address. They take no child's place.
VIEWERS = 64
VIEWERS_OF_ONE = 32

#: The bits of an IPv6 address that name a network; its owner chooses the rest.
_NETWORK_BITS = 64


@dataclass(eq=False)
class ConnectionSlot:
    """One connection, from its first byte on."""

    #: From where it comes, as `place_of` says it.
    place: str
    #: Whether it has yet to say hello.
    entering: bool = True
    #: Whether it watches the run's page.
    watching: bool = False
    #: Whether it is being sent a large answer.
    answered: bool = False
    gone: bool = False


class ConnectionLimits:
    """Counts the connections, and says which may come in.

    Args:
        children: how many may have said hello. As many again as may be on their way to it may be
            open at once.
        limit_of_one: how many of these may come from one place. A quarter of them, and at least
            `ENTERING_OF_ONE`, may be on their way to the hello.
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
        """How many connections are open."""
        return self._open.total() + self._watching.total()

    def enter(self, host: str) -> ConnectionSlot:
        """A connection from this address comes.

        Raises:
            ProtocolError: it does not fit.
        """
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

    def settle(self, visit: ConnectionSlot) -> None:
        """It has said hello, and was welcome."""
        if visit.entering:
            visit.entering = False
            _take_one(self._entering, visit.place)

    def watch(self, visit: ConnectionSlot) -> None:
        """It watches the run's page, and is no child.

        Raises:
            ProtocolError: too many watch.
        """
        place = visit.place
        for count, limit, what in (
            (self._watching.total(), VIEWERS, "viewers watch already"),
            (self._watching[place], VIEWERS_OF_ONE, f"viewers of {place} watch already"),
        ):
            if count >= limit:
                raise ProtocolError("full", f"{limit} {what}; close a page elsewhere")
        self.settle(visit)
        visit.watching = True
        _take_one(self._open, place)
        self._watching[place] += 1

    def answer(self, visit: ConnectionSlot) -> None:
        """It is sent a large answer, until it is gone.

        Raises:
            ProtocolError: too many are.
        """
        place = visit.place
        for count, limit, what in (
            (self._answered.total(), ANSWERS, "large answers are under way"),
            (self._answered[place], ANSWERS_OF_ONE, f"large answers to {place} are under way"),
        ):
            if count >= limit:
                raise ProtocolError("full", f"{limit} {what}; ask again when one has been read")
        visit.answered = True
        self._answered[place] += 1

    def leave(self, visit: ConnectionSlot) -> None:
        """It is gone. Nothing happens the second time."""
        if not visit.gone:
            if visit.answered:
                _take_one(self._answered, visit.place)
            self.settle(visit)
            visit.gone = True
            _take_one(self._watching if visit.watching else self._open, visit.place)


class TokenBucket:
    """So much a second, and so much more at once.

    Args:
        rate: what is earned a second.
        burst: what may be owed.
        now: seconds, never going back.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._owed = 0.0
        self._since = now

    def spend(self, amount: float, now: float) -> float:
        """Spends what was used since the last call.

        Returns:
            After how many seconds that will have been allowed; 0 if it is.
        """
        earned = self._rate * (now - self._since)
        self._since = now
        self._owed = max(0.0, self._owed + amount - earned)
        return max(0.0, (self._owed - self._burst) / self._rate)


def place_of(host: str) -> str:
    """What one machine can choose no more of: an IPv4 address, or the network of an IPv6 one."""
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
    """Checks that only those come in that should: beyond this machine that takes TLS and tokens.

    Args:
        host: where the parent listens, as an address or a name.

    Raises:
        ConfigurationError: one of the two is missing, and `parent.open` does not allow it.
    """
    missing = [
        what
        for what, given in (
            ("tokens (parent.tokens_file)", settings.tokens_file),
            ("TLS (parent.certificate_file, parent.key_file)", settings.certificate_file),
        )
        if not given
    ]
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
