"""Log lines with fields for systemd's journal, where standard error is the journal.

`journalctl GENKIDAMA_CHILD=pi-03` and `-o json` then find what a line says. The protocol is that of
https://systemd.io/JOURNAL_NATIVE_PROTOCOL: a datagram with a line `NAME=value` for each field.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

__all__ = ["SOCKET", "Journal", "is_journal", "message"]

#: Where the journal listens.
SOCKET = "/run/systemd/journal/socket"

_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


def is_journal() -> bool:
    """Whether standard error goes to the journal, as it does in a service of systemd."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))


def message(fields: dict[str, Any]) -> bytes:
    """The datagram of a log line. Its text is the line as JSON, as without the journal.

    Args:
        fields: what the line says; `event` and `level` among them.
    """
    told: dict[str, str] = {
        "MESSAGE": json.dumps(fields, default=str, ensure_ascii=False),
        "PRIORITY": str(_PRIORITIES.get(str(fields.get("level")), 6)),
        "SYSLOG_IDENTIFIER": "genkidama",
    }
    for name, value in fields.items():
        if name.isidentifier() and name.isascii() and len(name) <= 50:
            told[f"GENKIDAMA_{name.upper()}"] = str(value)
    parts = []
    for key, text in told.items():
        content = text.encode(errors="replace")
        if b"\n" in content:
            parts.append(key.encode() + b"\n" + struct.pack("<Q", len(content)) + content + b"\n")
        else:
            parts.append(key.encode() + b"=" + content + b"\n")
    return b"".join(parts)


class Journal:
    """What structlog writes to. A line that the journal does not take goes to standard error.

    Args:
        path: where the journal listens.
    """

    def __init__(self, path: str = SOCKET) -> None:
        self._path = path

    def msg(self, **fields: Any) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.setblocking(False)
                channel.sendto(message(fields), self._path)
        except (OSError, ValueError):  # it is full or gone, or the line is too long for a datagram
            with suppress(OSError, ValueError):
                print(json.dumps(fields, default=str), file=sys.stderr, flush=True)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name in (*_PRIORITIES, "exception"):
            return self.msg
        raise AttributeError(name)
