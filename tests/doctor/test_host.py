"""What the doctor reads off a machine, read off this one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from genkidama.doctor import host
from genkidama.doctor.host import running_bytes
from genkidama.doctor.judgements.check import Check
from tests.helpers import until


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


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    assert host.writable("state", tmp_path / "a/b") == [
        Check("state", "ok", f"{tmp_path / 'a/b'} can be made")
    ]
    assert host.writable("state", tmp_path) == [Check("state", "ok", f"{tmp_path} can be written")]
    (failed,) = host.writable("state", Path("/proc/genkidama"))
    assert failed.status == "failed" and "/proc cannot be written" in failed.found
    assert list(tmp_path.iterdir()) == []


def test_a_quota_of_any_group_above_counts(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/system.slice/genkidama-child.service"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/genkidama-child.service\n")
    (group / "cpu.max").write_text("max 100000\n")
    assert host.cores(1, tmp_path)[0].status == "ok"
    (group.parent / "cpu.max").write_text("50000 100000\n")
    (found,) = host.cores(1, tmp_path)
    assert found.status == "warning" and "a cgroup allows 0.5" in found.found


def test_memory_is_that_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    meminfo = tmp_path / "proc/meminfo"
    meminfo.write_text(
        "MemTotal: 948304 kB\nMemAvailable: 716800 kB\nSwapTotal: 102396 kB\nSwapFree: 102400 kB\n"
    )
    assert host.memory(4, tmp_path)[0].found.startswith(
        "700 MiB available, 100 MiB of swap; a child with 4 cores takes about "
    )
    meminfo.write_text("MemAvailable: 102400 kB\n")
    (found,) = host.memory(1, tmp_path)
    assert found.status == "failed" and found.found.startswith("100 MiB available, no swap")
