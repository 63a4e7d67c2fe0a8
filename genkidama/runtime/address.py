"""Addresses of a parent: `HOST:PORT`, `[::1]:PORT`, or `fd://N` for an inherited socket."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import TypedDict

from genkidama.config.parent_address import bracketed, host_and_port
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runtime.descendants import command_of

#: An address of the block that is for examples alone (RFC 5737). No packet is sent there.
_ELSEWHERE, _ELSEWHERE_IPV6 = ("192.0.2.1", 9), ("2001:db8::1", 9)

#: The state of a listening socket in Linux's tables (include/net/tcp_states.h).
_LISTENING = "0A"

_FD = re.compile(r"fd://(\d{1,6})\Z")


class Binding(TypedDict, total=False):
    """Arguments of `websockets.asyncio.server.serve`: a host and a port, or a socket."""

    host: str
    port: int
    sock: socket.socket


def parse_listen(listen: str) -> Binding:
    """Parses `HOST:PORT`, `[IPV6]:PORT`, or `fd://N`. Port 0 lets the system choose one.

    The last is an inherited TCP socket, as systemd's socket activation gives it; the parent then
    owns it.
    """
    if (inherited := _FD.match(listen)) is not None:
        return {"sock": _inherit(int(inherited[1]), listen)}
    found = host_and_port(listen)
    if found is None:
        raise ConfigurationError(
            f"parent.listen = {listen!r}: expected HOST:PORT with a port from 0 to 65535, "
            "as 0.0.0.0:8765 or [::1]:8765, or fd://N"
        )
    return {"host": found[0], "port": found[1]}


def _inherit(number: int, listen: str) -> socket.socket:
    try:
        inherited = socket.socket(fileno=number)
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot listen on {listen}: descriptor {number}: {error.strerror}; "
            "was a socket passed on?"
        ) from None
    is_ip = inherited.family in (socket.AF_INET, socket.AF_INET6)
    if inherited.type != socket.SOCK_STREAM or not is_ip:
        inherited.detach()
        raise EnvironmentFailure(f"cannot listen on {listen}: descriptor {number} is no TCP socket")
    inherited.setblocking(False)
    return inherited


def listening_socket(listen: str) -> socket.socket:
    """A socket that takes what comes to `HOST:PORT`, even before there is a parent to serve it."""
    binding = parse_listen(listen)
    if "sock" in binding:
        return binding["sock"]
    host = binding["host"]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, binding["port"]), family=family, backlog=256)
    except OSError as error:
        raise explain(listen, error) from None


def local_address(server: socket.socket) -> str:
    """`HOST:PORT` under which this machine itself finds a listening socket."""
    host, port = server.getsockname()[:2]
    return f"{own_host(host)}:{port}"


def own_host(host: str) -> str:
    """Under which address this machine itself reaches what listens at `host`, before a port."""
    loopback = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
    return bracketed(loopback.get(host, host))


def reachable_host(host: str) -> str:
    """Under which address other machines reach what listens at `host`, as far as this one knows."""
    if host not in ("0.0.0.0", "::", ""):  # noqa: S104
        return host
    family, elsewhere = socket.AF_INET, _ELSEWHERE
    if host == "::":  # where asyncio takes no IPv4
        family, elsewhere = socket.AF_INET6, _ELSEWHERE_IPV6
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        try:
            way.connect(elsewhere)
        except OSError:  # there is no way out of this machine
            return socket.gethostname()
        return str(way.getsockname()[0])


def explain(listen: str, error: OSError) -> EnvironmentFailure:
    """The error of an address that cannot be bound, with the way out."""
    if isinstance(error, socket.gaierror):
        return EnvironmentFailure(
            f"cannot listen on {listen}: {error.strerror}; "
            "use an address of this machine, as 0.0.0.0"
        )
    number = error.errno or 0
    user = _listener(listen) if number == errno.EADDRINUSE else ""
    ways = {
        errno.EADDRINUSE: "choose another port with --listen, "
        f"or stop the program that uses this one{user and f': {user}'}",
        errno.EADDRNOTAVAIL: "use an address of this machine, as 0.0.0.0",
        errno.EACCES: "ports below 1024 need privileges; choose a higher one",
    }
    way = ways.get(number, "choose another address with --listen")
    return EnvironmentFailure(f"cannot listen on {listen}: {os.strerror(number)}; {way}")


def _listener(listen: str) -> str:
    """The process that listens on the port of `HOST:PORT`, where Linux says so, else empty. Of
    several that have inherited the socket it is the oldest."""
    port, sockets = (host_and_port(listen) or ("", 0))[1], set[str]()
    for table in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/net/{table}") as file:
            for _, local, _, state, *rest in map(str.split, file.readlines()[1:]):
                if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{rest[5]}]")
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()] if sockets else []
    for pid in sorted(pids):
        if not sockets.isdisjoint(_open_files(f"/proc/{pid}/fd")):
            return f"process {pid}, {command_of(pid)!r}"
    return ""


def _open_files(folder: str) -> Iterator[str]:
    """The files and sockets that a process has open; none of another user's."""
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):  # it has been closed meanwhile
                yield os.readlink(f"{folder}/{name}")
