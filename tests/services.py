"""A service manager that hears what a service says, on a real datagram socket."""

from __future__ import annotations

import socket
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Systemd:
    """The other end of the notification socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._socket.setblocking(False)
        self._heard: list[str] = []

    @property
    def heard(self) -> list[str]:
        """All messages so far."""
        try:
            while True:
                self._heard.append(self._socket.recv(4096).decode())
        except BlockingIOError:
            return self._heard

    def close(self) -> None:
        self._socket.close()


@contextmanager
def service_manager(abstract: bool = False) -> Iterator[Systemd]:
    """One with a socket of its own, a path or, on Linux, an abstract name."""
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # a short path: a socket's has at most some hundred bytes
        manager = Systemd(
            f"@genkidama-{uuid.uuid4().hex}" if abstract else str(Path(folder) / "notify")
        )
        try:
            yield manager
        finally:
            manager.close()
