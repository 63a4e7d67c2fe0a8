"""What the journal gets, as it would read it."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from pathlib import Path

import pytest
import structlog

from genkidama.system import console, journal
from genkidama.system.journal import Journal, is_journal, message


def read(datagram: bytes) -> dict[str, str]:
    """The fields of a datagram, as the protocol's page says."""
    found: dict[str, str] = {}
    while datagram:
        line, _, rest = datagram.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (size,) = struct.unpack_from("<Q", rest)
            value = rest[8 : 8 + size]
            assert rest[8 + size : 9 + size] == b"\n"
            rest = rest[9 + size :]
        found[name.decode()] = value.decode()
        datagram = rest
    return found


def test_fields_and_the_line_itself() -> None:
    fields = {"event": "join", "level": "warning", "child": "pi\nMESSAGE=no", "a-b": 1, "n": 2}
    found = read(message(fields))
    assert json.loads(found.pop("MESSAGE")) == fields
    assert found == {
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "genkidama",
        "GENKIDAMA_EVENT": "join",
        "GENKIDAMA_LEVEL": "warning",
        "GENKIDAMA_CHILD": "pi\nMESSAGE=no",
        "GENKIDAMA_N": "2",
    }


def test_lines_go_to_the_journal_where_standard_error_is_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "socket"
    monkeypatch.setattr(journal.Journal.__init__, "__defaults__", (str(place),))
    monkeypatch.setattr(console, "_always", {})
    found = os.fstat(sys.stderr.fileno())
    assert not is_journal()
    monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
    assert is_journal()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
            listening.bind(str(place))
            console.configure_logging(named=True)
            console.log_with(run="shelf", child="pi")
            structlog.get_logger().info("left", child="other")
            told = read(listening.recv(1 << 16))
        assert (told["GENKIDAMA_RUN"], told["GENKIDAMA_CHILD"]) == ("shelf", "other")
        assert capfd.readouterr().err == ""
        place.unlink()
        structlog.get_logger().info("nobody listens")
        assert json.loads(capfd.readouterr().err)["event"] == "nobody listens"
    finally:
        monkeypatch.delenv("JOURNAL_STREAM")
        console.configure_logging()


def test_a_line_that_is_too_long_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    Journal("/nowhere").info(event="x" * 10)
    assert json.loads(capsys.readouterr().err) == {"event": "x" * 10}
