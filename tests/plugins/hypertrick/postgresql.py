"""A real PostgreSQL for tests, from Debian's package `postgresql`.

It lives in a temporary directory and listens on a Unix socket, with no TCP port.

PostgreSQL refuses to run as root: tests that do run it as the user `postgres`, which the package
makes.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: Seconds until the server must accept connections, or have stopped.
PATIENCE = 30.0


def binaries() -> Path | None:
    """The folder of the newest PostgreSQL that is installed."""
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[-3])
    )
    found = str(debian[-1]) if debian else shutil.which("postgres")
    return Path(found).resolve().parent if found else None


def _unprivileged() -> dict[str, Any]:
    """As whom to run it, as options of `subprocess`."""
    if os.geteuid() != 0:
        return {}
    try:
        user = pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip(
            "the tests run as root, which PostgreSQL refuses, and there is no user postgres"
        )
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@contextmanager
def running_postgresql() -> Iterator[str]:
    """Starts a server and yields the SQLAlchemy address of its database.

    Skips the test where there is none.
    """
    psycopg = pytest.importorskip(
        "psycopg", reason="psycopg is not installed: pip install 'genkidama-rl[postgresql]'"
    )
    folder = binaries()
    if folder is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    identity = _unprivileged()
    # A socket's path must be short.
    home = Path(tempfile.mkdtemp(prefix="genkidama-pg-", dir="/tmp"))
    if identity:
        os.chown(home, identity["user"], identity["group"])
    environment = {"PATH": os.defpath, "LC_ALL": "C", "HOME": str(home)}
    options: dict[str, Any] = {**identity, "cwd": home, "env": environment}
    server = None
    try:
        command = [
            folder / "initdb",
            "--pgdata",
            home / "data",
            "--username",
            "postgres",
            "--auth",
            "trust",
            "--no-sync",
            "--encoding",
            "UTF8",
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE, **options)
        changes = {
            "listen_addresses": "",
            "unix_socket_directories": home,
            "fsync": "off",
            "shared_buffers": "16MB",
        }
        command = [
            folder / "postgres",
            "-D",
            home / "data",
            *[f"--{name}={value}" for name, value in changes.items()],
        ]
        with (home / "log").open("wb") as log:
            server = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, **options
            )
        end = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(host=str(home), user="postgres", dbname="postgres").close()
                break
            except psycopg.OperationalError:
                if server.poll() is not None or time.monotonic() > end:
                    pytest.fail(f"PostgreSQL does not start: {(home / 'log').read_text()}")
                time.sleep(0.02)
        yield f"postgresql+psycopg://postgres@/postgres?host={home}"
    finally:
        if server is not None and server.poll() is None:
            server.send_signal(signal.SIGINT)  # its "fast shutdown": connections are closed
            try:
                server.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(home)
