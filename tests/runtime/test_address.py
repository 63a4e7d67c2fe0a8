"""Where a parent may listen, and what is said where it cannot."""

from __future__ import annotations

import errno
import os
import socket
import sys

import pytest

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runtime.address import (
    explain,
    listening_socket,
    local_address,
    parse_listen,
    reachable_host,
)


@pytest.mark.parametrize(
    ("listen", "binding"),
    [
        ("0.0.0.0:8765", {"host": "0.0.0.0", "port": 8765}),
        ("pi.local:0", {"host": "pi.local", "port": 0}),
        ("[::1]:65535", {"host": "::1", "port": 65535}),
    ],
)
def test_a_host_and_a_port(listen: str, binding: dict[str, object]) -> None:
    assert parse_listen(listen) == binding


@pytest.mark.parametrize(
    "listen",
    ["", "8765", "pi", "pi:", ":8765", "pi:65536", "::1:8765", "a b:1", "fd://x", "pi:1\n"],
)
def test_anything_else_is_the_users_mistake(listen: str) -> None:
    with pytest.raises(ConfigurationError, match=r"parent.listen = .*: expected HOST:PORT"):
        parse_listen(listen)


def test_a_socket_may_be_inherited() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = parse_listen(f"fd://{os.dup(server.fileno())}")["sock"]
        with found:
            assert found.getsockname() == server.getsockname()
            assert not found.getblocking()


@pytest.mark.parametrize(
    "kind", [(socket.AF_INET, socket.SOCK_DGRAM), (socket.AF_UNIX, socket.SOCK_STREAM)], ids=str
)
def test_what_is_no_tcp_socket_is_refused_and_stays_open(
    kind: tuple[socket.AddressFamily, socket.SocketKind],
) -> None:
    with socket.socket(*kind) as other:
        with pytest.raises(EnvironmentFailure, match="is no TCP socket"):
            parse_listen(f"fd://{other.fileno()}")
        assert other.fileno() >= 0 and other.getsockname() is not None
    with pytest.raises(EnvironmentFailure, match="was a socket passed on"):
        parse_listen("fd://999999")


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0"])
def test_a_socket_takes_connections_before_anybody_serves_it(listen: str) -> None:
    if listen.startswith("[") and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    gap = os.open(os.devnull, os.O_RDONLY)
    with listening_socket(listen) as server:
        os.close(gap)  # whatever is opened next stands before the socket
        address = server.getsockname()[:2]
        with socket.create_connection(address, timeout=5.0):
            pass
        with pytest.raises(EnvironmentFailure) as caught:
            listening_socket(f"{listen.rpartition(':')[0]}:{address[1]}")
        words = "choose another port with --listen, or stop the program that uses this one"
        assert words in str(caught.value)
        if sys.platform == "linux":
            assert f"{words}: process {os.getpid()}, '" in str(caught.value)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.0.0.2:0", "0.0.0.0:0", "[::1]:0", "[::]:0"])
def test_this_machine_finds_a_socket_on_any_of_its_addresses(listen: str) -> None:
    if "127.0.0.2" in listen and sys.platform != "linux":
        pytest.skip("elsewhere 127.0.0.2 is no address of the machine")
    if listen.startswith("[") and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    with listening_socket(listen) as server:
        found = parse_listen(local_address(server))  # a Binding again
        with socket.create_connection((found["host"], found["port"]), timeout=5.0):
            server.accept()[0].close()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EADDRNOTAVAIL, ""), "use an address of this machine, as 0.0.0.0"),
        (OSError(errno.EACCES, ""), "Permission denied; ports below 1024 need privileges"),
        (OSError(errno.EIO, ""), "choose another address with --listen"),
        (socket.gaierror(-2, "Name or service not known"), "use an address of this machine"),
    ],
)
def test_the_way_out_is_named(error: OSError, words: str) -> None:
    found = explain("pi:8765", error)
    assert str(found).startswith("cannot listen on pi:8765: ") and words in str(found)


def test_who_listens_on_ipv6_alone_is_reached_by_that(monkeypatch: pytest.MonkeyPatch) -> None:
    class Way:
        def __init__(self, family: int, _: int) -> None:
            self.family = family

        def __enter__(self) -> Way:
            return self

        def __exit__(self, *_: object) -> None: ...

        def connect(self, address: tuple[str, int]) -> None:
            assert (":" in address[0]) == (self.family == socket.AF_INET6)

        def getsockname(self) -> tuple[str, int]:
            return "2001:db8::7" if self.family == socket.AF_INET6 else "192.0.2.7", 1

    monkeypatch.setattr(socket, "socket", Way)
    found = [reachable_host(host) for host in ("::", "0.0.0.0", "", "10.0.0.3")]
    assert found == ["2001:db8::7", "192.0.2.7", "192.0.2.7", "10.0.0.3"]
