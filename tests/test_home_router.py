"""docs/notes/home-router.md: a child meets a parent through a forwarded port, and comes back."""

from __future__ import annotations

import re
import select
import socket
import threading
from contextlib import suppress
from pathlib import Path

from genkidama.protocol.tokens import Invitation
from tests.certificates import needs_openssl
from tests.helpers import constant, free_port, history, starting, until


class Router:
    """Forwards a port of its own to another one; `forget` ends the connections that it knows."""

    def __init__(self, port: int) -> None:
        self._inner = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._known: list[socket.socket] = []
        self.forwarded = 0
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                outer, _ = self._listener.accept()
                try:
                    inner = socket.create_connection(("127.0.0.1", self._inner))
                except OSError:  # the parent is not there yet
                    outer.close()
                    continue
                self._known += [outer, inner]
                self.forwarded += 1
                self._threads.append(threading.Thread(target=self._pass_on, args=(outer, inner)))
                self._threads[-1].start()

    def _pass_on(self, outer: socket.socket, inner: socket.socket) -> None:
        with outer, inner, suppress(OSError):
            while True:
                for one in select.select([outer, inner], [], [])[0]:
                    if not (data := one.recv(1 << 16)):
                        return
                    (inner if one is outer else outer).sendall(data)

    def forget(self) -> None:
        """Ends all connections that there are."""
        for one in self._known:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._known.clear()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        self.forget()
        for thread in self._threads:
            thread.join()


@needs_openssl
def test_a_child_comes_through_a_forwarded_port_and_comes_back(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(constant().to_toml())
    inner = free_port()
    router = Router(inner)
    place = ["--credentials", str(tmp_path / "keys"), "--listen", f"127.0.0.1:{inner}"]
    try:
        with starting(tmp_path) as start:
            parent = start("genkidama", "parent", "e.toml", *place, "--out", "run")
            printed = until(lambda: re.search(r"join '(\S+)'", parent.out), "a join string")[1]
            # The certificate was made for another address: its fingerprint is what counts.
            outer = Invitation.parse(printed)
            forwarded = re.sub(r"@[^#]+#", f"@localhost:{router.port}#", printed)
            assert Invitation.parse(forwarded).token == outer.token
            start("genkidama", "join", forwarded, "--name", "away", "--allow", "tests.helpers")
            until(lambda: history(tmp_path / "run", "exchange"), "an exchange")
            count = len(history(tmp_path / "run", "exchange"))
            router.forget()
            until(lambda: router.forwarded >= 2, "another connection")
            until(lambda: len(history(tmp_path / "run", "exchange")) > count + 1, "more exchanges")
            assert {line["child"] for line in history(tmp_path / "run", "join")} == {"away"}
    finally:
        router.close()
