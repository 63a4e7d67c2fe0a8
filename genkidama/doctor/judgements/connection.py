"""What to think of the way to a parent: its name, port, software, certificate and clock."""

from __future__ import annotations

import errno
import re

from genkidama.doctor.judgements.check import DAY, Check, duration

__all__ = [
    "judge_certificate",
    "judge_clock_offset",
    "judge_closed_port",
    "judge_page",
    "judge_server_header",
    "judge_unknown_name",
]

#: What a clock may be off by, in seconds. Beyond the first, times in histories of several machines
#: mislead; beyond the second, certificates and package downloads begin to fail.
_OFFSETS = (5.0, 300.0)


#: A certificate that ends sooner should be renewed.
_CERTIFICATE_DAYS = 30


def judge_unknown_name(host: str, reason: str) -> Check:
    """What to do about a name that is not known."""
    if host.endswith(".local"):
        way = (
            "names in .local need multicast DNS: sudo apt install avahi-daemon libnss-mdns, "
            "here and on the parent; or give an IP address"
        )
    else:
        way = (
            "check the spelling and this machine's network (`ip address`), "
            "or give the parent's IP address"
        )
    return Check("name", "failed", f"{host}: {reason}", way)


def judge_closed_port(host: str, port: int, number: int | None, reason: str) -> Check:
    """What to do about a port to which no connection can be made.

    Args:
        number: the `errno` of the attempt; None if it has taken too long.
        reason: the system's words.
    """
    if number is None or number == errno.ETIMEDOUT:
        found = "no answer"
        way = f"is {host} switched on (`ping {host}`), "
        way += f"and does its firewall let port {port} through?"
    elif number == errno.ECONNREFUSED:
        found = "refused: nothing listens there"
        way = (
            "start the parent (systemctl status genkidama-parent), with that port "
            "and listening beyond itself: --listen 0.0.0.0:PORT"
        )
    elif number in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL):
        found = f"no way there: {reason}"
        way = "are both machines in the same network, and switched on? See `ip route`"
    else:
        found = reason
        way = "check the address, and this machine's firewall"
    return Check("port", "failed", f"{host}:{port}: {found}", way)


def judge_server_header(header: str, healthy: bool, version: str, protocol: int | None) -> Check:
    """Whether the parent and this machine have the same Genkidama.

    Args:
        header: what the parent says of itself: `genkidama/VERSION protocol/N`.
        healthy: whether its `/healthz` is well.
        version, protocol: ours; the protocol is None if our own messages cannot be imported.
    """
    stated = re.search(r"genkidama/(\S+) protocol/(\d+)", header)
    if stated is None and healthy:
        way = "compare `genkidama --version` on both machines"
        return Check("version", "warning", f"hidden by {header or 'a proxy'}", way)
    if stated is None:
        found = f"{header or 'something'} answers, which is no parent of this version"
        way = "check host and port; or install the same version"
        return Check("version", "failed", found, way)
    theirs, number = stated[1], int(stated[2])
    same = f"install the same version on both: pip install genkidama=={theirs}"
    if protocol is not None and number != protocol:
        found = f"the parent has {theirs} with protocol {number}, "
        found += f"this machine {version} with protocol {protocol}"
        return Check("version", "failed", found, same)
    if theirs != version:
        return Check("version", "warning", f"the parent has {theirs}, this machine {version}", same)
    return Check("version", "ok", f"{theirs}, protocol {number}, on both sides")


def judge_certificate(row: str, names: list[str], ends: float, now: float, protocol: str) -> Check:
    """Whether a verified certificate, which has not ended, will do for a while.

    Args:
        row: what the row is called.
        names: of hosts and addresses that it is for.
        ends: when, in Unix seconds.
        now: the same clock.
        protocol: as `"TLSv1.3"`.
    """
    found = f"{protocol}, certificate for {', '.join(names)}, {(ends - now) / DAY:.0f} days left"
    if ends - now < _CERTIFICATE_DAYS * DAY:
        way = "make a new one before it ends; the parent has to be started again with it"
        return Check(row, "warning", found, way)
    return Check(row, "ok", found)


def judge_page(status: int, reason: str, page: str) -> Check:
    """Whether the parent shows its run.

    Args:
        status: of the HTTP answer; 0 if there is none.
        reason: the same in words.
        page: its address.
    """
    if status == 200:
        return Check("page", "ok", page)
    if status == 401:
        return Check("page", "ok", f"{page} for viewers (genkidama token --viewer, at the parent)")
    if status == 403:
        way = "ask by an address, as http://192.168.1.2:8765/"
        return Check("page", "warning", f"{page} is not shown under this name", way)
    way = "install this version at the parent, or look what stands between"
    return Check("page", "warning", f"{page}: {reason}", way)


def judge_clock_offset(seconds: float) -> Check:
    """What to think of a clock that is so far from the parent's; positive if it is ahead."""
    off = abs(seconds)
    side = "ahead of" if seconds > 0 else "behind"
    found = "as the parent's, to a second" if off < 1.5 else f"{duration(off)} {side} the parent's"
    if off <= _OFFSETS[0]:
        return Check("clock", "ok", found)
    way = (
        "set both clocks by NTP: sudo timedatectl set-ntp true, "
        "and see `timedatectl timesync-status`"
    )
    return Check("clock", "failed" if off > _OFFSETS[1] else "warning", found, way)
