"""Measurements of the doctor: this machine, and the way to real parents with real certificates."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import genkidama
from genkidama.cli.access import fingerprint_of
from genkidama.config.sections import ParentSettings
from genkidama.parent import connection
from genkidama.plugins.doctor import measurements
from genkidama.plugins.doctor.checks import Check, Ended
from genkidama.plugins.doctor.measurements import running_bytes
from tests.certificates import Authority, Signed, needs_openssl
from tests.helpers import running, small, until, url
from tests.plugins.doctor.parents import TOKEN, examined, secured


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process takes")
def test_a_child_that_runs_is_found_with_what_it_takes(tmp_path: Path) -> None:
    """On a machine with nobody else: the children of other tests come and go."""
    command = [sys.executable, "-m", "genkidama.child", "--parent", "ws://127.0.0.1:9"]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / str(child.pid)).symlink_to(f"/proc/{child.pid}")
    try:
        until(lambda: running_bytes(tmp_path) > 10_000_000, "a child of more than 10 MB")
    finally:
        child.terminate()
        child.wait()
    assert running_bytes(tmp_path) == 0


def test_another_project_of_that_name_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What they import is in the tests of the command.
    monkeypatch.setattr(measurements, "_try", lambda *_: Ended(0, "{}"))
    assert not [row for row in measurements.packages() if row.name == "genkidama"]
    version = "0.0.8"
    info = tmp_path / f"genkidama-{version}.dist-info/METADATA"
    info.parent.mkdir()
    info.write_text(f"Metadata-Version: 2.1\nName: genkidama\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    stranger = measurements.packages()[0]
    assert (stranger.name, stranger.status) == ("genkidama", "failed")
    assert version in stranger.found and "pip uninstall genkidama" in stranger.advice


def test_a_disk_has_one_row_however_many_directories_it_holds(tmp_path: Path) -> None:
    (found,) = measurements.disks([tmp_path, tmp_path / "not" / "yet"], (0, 1))
    assert found.status == "ok" and str(tmp_path) in found.found


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    assert measurements.writable("state", tmp_path / "a/b") == [
        Check("state", "ok", f"{tmp_path / 'a/b'} can be made")
    ]
    assert measurements.writable("state", tmp_path) == [
        Check("state", "ok", f"{tmp_path} can be written")
    ]
    (failed,) = measurements.writable("state", Path("/proc/genkidama"))
    assert failed.status == "failed" and "/proc cannot be written" in failed.found
    assert list(tmp_path.iterdir()) == []


def test_a_quota_of_any_group_above_counts(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/system.slice/genkidama-child.service"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/genkidama-child.service\n")
    (group / "cpu.max").write_text("max 100000\n")
    assert measurements.cores(1, tmp_path)[0].status == "ok"
    (group.parent / "cpu.max").write_text("50000 100000\n")
    (found,) = measurements.cores(1, tmp_path)
    assert found.status == "warning" and "a cgroup allows 0.5" in found.found


def test_memory_is_that_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    meminfo = tmp_path / "proc/meminfo"
    meminfo.write_text(
        "MemTotal: 948304 kB\nMemAvailable: 716800 kB\nSwapTotal: 102396 kB\nSwapFree: 102400 kB\n"
    )
    assert measurements.memory(4, tmp_path)[0].found.startswith(
        "700 MiB available, 100 MiB of swap; a child with 4 cores takes about "
    )
    meminfo.write_text("MemAvailable: 61440 kB\n")
    (found,) = measurements.memory(1, tmp_path)
    assert found.status == "failed" and found.found.startswith("60 MiB available, no swap")


@pytest.mark.parametrize(
    ("code", "name"), [(-4, "SIGILL"), (-9, "SIGKILL"), (-99, "signal 99"), (0, ""), (1, "")]
)
def test_the_name_of_a_signal(code: int, name: str) -> None:
    assert measurements.name_of_signal(code) == name


def test_what_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "IMPORT_SECONDS", 0.05)
    monkeypatch.setattr(measurements, "_BOX2D", "import time; time.sleep(60)")
    assert measurements.box2d()[0].found == "making LunarLander-v3 does not end"


@needs_openssl
def test_a_certificate_on_a_disk(tmp_path: Path, authority: Authority, signed: Signed) -> None:
    def found(pair: Signed) -> Check:
        (check,) = measurements.certificate(ParentSettings(**pair.settings()))
        assert check.status == "ok" or check.advice
        return check

    assert found(signed) == Check(
        "certificate", "ok", "TLSv1.3, certificate for 127.0.0.1, localhost, 90 days left"
    )
    soon = found(authority.sign("DNS:pi", ends=10))
    assert soon.status == "warning" and "10 days left" in soon.found
    over = found(authority.sign("DNS:pi", begins=-9, ends=-1))
    assert over.status == "failed" and "certificate has expired" in over.found
    nameless = found(authority.sign("email:pi@example.org"))
    assert nameless.status == "failed" and "names no host" in nameless.found
    mixed = found(Signed(signed.certificate, authority.sign("DNS:pi").key))
    assert mixed.status == "failed" and "the key is not the certificate's" in mixed.found
    absent = found(Signed(str(tmp_path / "none.pem"), signed.key))
    assert absent.status == "failed" and "No such file" in absent.found
    assert (
        measurements.certificate(None)[0].status
        == measurements.certificate(ParentSettings())[0].status
        == "skipped"
    )


def test_tokens_on_a_disk(tmp_path: Path) -> None:
    def found(text: str, mode: int = 0o600) -> Check:
        file = tmp_path / "tokens"
        file.write_text(text)
        file.chmod(mode)
        return measurements.tokens(ParentSettings(tokens_file=str(file)))[0]

    assert found(f"pi-1 {TOKEN}\n* {TOKEN}2\n") == Check(
        "tokens", "ok", "2 names, any name among them"
    )
    assert found(f"pi-1 {TOKEN}\n", 0o644).advice == f"chmod o-r {tmp_path / 'tokens'}"
    assert found("# nobody\n").status == "warning"
    assert found("pi-1\n").status == "failed"
    assert (
        measurements.tokens(ParentSettings(tokens_file=str(tmp_path / "none")))[0].status
        == "failed"
    )
    assert measurements.tokens(None)[0].status == "warning"


async def test_another_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SERVER", "genkidama/9.9 protocol/99")
    async with running(small(), tmp_path / "run") as parent:
        found = await examined(parent=url(parent.address))
    version = found["version"]
    both = f"the parent has 9.9 with protocol 99, this machine {genkidama.__version__}"
    assert version.status == "failed" and both in version.found
    assert version.advice.endswith("genkidama-rl==9.9")
    assert found["token"].status == "skipped"


async def test_a_certificate_that_is_known_by_its_fingerprint(
    tmp_path: Path, signed: Signed
) -> None:
    known = fingerprint_of(Path(signed.certificate))
    async with secured(tmp_path, signed) as (_, address):
        right = await examined(parent=address, fingerprint=known)
        wrong = await examined(parent=address, fingerprint="0" * 64)
    assert right["tls"] == Check("tls", "ok", "TLSv1.3, with the fingerprint")
    assert right["version"].status == "ok"
    assert (wrong["tls"].status, wrong["version"].status) == ("failed", "skipped")
    assert known in wrong["tls"].found and "genkidama token" in wrong["tls"].advice


async def test_a_parent_without_tls(tmp_path: Path) -> None:
    async with running(small(), tmp_path / "run") as running_parent:
        address = url(running_parent.address)
        secure, plain = await asyncio.gather(
            examined(parent=address.replace("ws:", "wss:")), examined(parent=address)
        )
        assert not running_parent.server.refusals
    assert secure["tls"].status == "failed" and "use ws://" in secure["tls"].advice
    assert secure["version"].found == "because of tls"
    assert plain["tls"] == Check("tls", "skipped", "ws:// is not encrypted")
    assert plain["token"] == Check("token", "ok", "not needed")


@pytest.mark.parametrize(
    ("address", "advice"),
    [("ws://no-such-machine.invalid:1", "IP address"), ("ws://a..b:1", "IP address")],
)
async def test_a_name_that_nobody_has(address: str, advice: str) -> None:
    found = await examined(parent=address)
    assert found["name"].status == "failed" and advice in found["name"].advice
    assert {found[name].status for name in ("port", "tls", "version", "token")} == {"skipped"}


def test_somebody_who_is_no_parent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = measurements.Target("127.0.0.1", server.getsockname()[1], False)
        check, reached = measurements.reach(target)
        assert check.status == "ok" and reached is not None
        other, _ = server.accept()
        other.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
        other.close()
        with reached:
            found, greeting = measurements.greet(target, reached)
    assert (
        found.status == "failed" and found.found.startswith("no HTTP answer: ") and greeting is None
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read: No such file or directory"), ("no PEM", "holds no PEM certificate")],
)
async def test_an_authority_that_cannot_be_used(
    tmp_path: Path, signed: Signed, content: str | None, words: str
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    async with secured(tmp_path, signed) as (_, address):
        found = await examined(parent=address, ca_file=str(file))
    assert (
        found["tls"].status == "failed"
        and found["tls"].found == f"ca_file = {str(file)!r}: {words}"
    )


async def test_a_token_that_cannot_be_read(tmp_path: Path) -> None:
    async with running(small(), tmp_path / "run") as running_parent:
        found = await examined(
            parent=url(running_parent.address), token_file=str(tmp_path / "none")
        )
    assert (
        found["token"].status == "failed"
        and "No such file" in found["token"].found
        and found["token"].advice
    )
