"""What a machine offers: read from trees as real machines have them, and from this one."""

from __future__ import annotations

import json
import mmap
import os
import platform
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from genkidama.runtime.machine import (
    RESERVED,
    available_bytes,
    descriptors_left,
    end_with_pipe,
    own_bytes,
    private_bytes,
    since_peak_bytes,
)
from tests.helpers import ROOT, gone, python, until

MIB = 1 << 20

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

MEMINFO = """\
MemTotal:         945364 kB
MemFree:          113824 kB
MemAvailable:     {} kB
Buffers:           41332 kB
"""

#: Mounts of a Raspberry Pi with systemd: one hierarchy, version 2.
UNIFIED = """\
22 28 0:20 / /proc rw,relatime shared:12 - proc proc rw
28 1 179:2 / / rw,noatime shared:1 - ext4 /dev/root rw
33 23 0:27 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 \
rw,nsdelegate,memory_recursiveprot
"""

#: Of an older system: a hierarchy of version 1 for each controller, and an empty one of version 2.
SEPARATE = """\
28 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
32 31 0:28 / /sys/fs/cgroup/unified rw,nosuid,nodev,noexec,relatime shared:10 - cgroup2 cgroup2 rw
34 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid,nodev,noexec,relatime shared:15 \
- cgroup cgroup rw,cpu,cpuacct
39 31 0:35 / /sys/fs/cgroup/memory rw,nosuid,nodev,noexec,relatime shared:20 \
- cgroup cgroup rw,memory
"""

#: What version 1 says where there is no limit.
NONE_1 = "9223372036854771712\n"


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def machine(
    root: Path, available_mib: int, mounts: str, membership: str, groups: dict[str, str]
) -> Path:
    """A tree with so much available, these mounts and groups, and these files of the groups."""
    proc = {
        "proc/meminfo": MEMINFO.format(available_mib * 1024),
        "proc/self/mountinfo": mounts,
        "proc/self/cgroup": membership,
    }
    return written(
        root, {**proc, **{f"sys/fs/cgroup/{name}": text for name, text in groups.items()}}
    )


def group_2(
    path: str,
    current: int,
    most: int | str = "max",
    high: int | str = "max",
    inactive: int = 0,
    active: int = 0,
) -> dict[str, str]:
    """The files of a group of version 2; sizes in MiB."""
    limits = {
        name: f"{size}\n" if size == "max" else f"{int(size) * MIB}\n"
        for name, size in (("max", most), ("high", high))
    }
    statistics = (
        f"anon {MIB}\nfile {(inactive + active) * MIB}\n"
        f"inactive_file {inactive * MIB}\nactive_file {active * MIB}\nslab 4096\n"
    )
    files = {"current": f"{current * MIB}\n", "stat": statistics, **limits}
    return {f"{path}memory.{name}": text for name, text in files.items()}


def group_1(
    path: str, usage: int, most: int | None, inactive: int = 0, hierarchical: int | None = None
) -> dict[str, str]:
    """The files of a group of version 1; sizes in MiB."""
    smallest = hierarchical if hierarchical is not None else most
    above = NONE_1 if smallest is None else f"{smallest * MIB}\n"
    statistics = (
        f"cache 0\ninactive_file 0\nhierarchical_memory_limit {above}"
        f"total_inactive_file {inactive * MIB}\ntotal_active_file {MIB}\n"
    )
    limit = NONE_1 if most is None else f"{most * MIB}\n"
    files = {"usage_in_bytes": f"{usage * MIB}\n", "limit_in_bytes": limit, "stat": statistics}
    return {f"memory/{path}memory.{name}": text for name, text in files.items()}


def test_without_groups_it_is_what_the_kernel_says_if_it_does(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
    before_available = "MemTotal: 945364 kB\nMemFree: 113824 kB\n"
    assert available_bytes(written(tmp_path, {"proc/meminfo": before_available})) is None
    now = written(tmp_path, {"proc/meminfo": MEMINFO.format(733_000)})
    assert available_bytes(now) == 733_000 * 1024


SERVICE = "system.slice/genkidama-child.service/"
UNIT = f"0::/{SERVICE[:-1]}\n"


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (group_2(SERVICE, 40), 700),  # no limits; the root has no such files
        (group_2(SERVICE, 40, most=500), 460),
        (group_2(SERVICE, 40, most=500, inactive=20, active=10), 490),
        (group_2(SERVICE, 40, most=500, high=300), 260),
        (group_2(SERVICE, 40, high=300), 260),
        (group_2(SERVICE, 40, most=5000), 700),
        (group_2(SERVICE, 300, most=200), -100),
        ({**group_2(SERVICE, 40, most=500), **group_2("system.slice/", 150, most=400)}, 250),
        (group_2("system.slice/", 150, most=400), 700),  # its own folder is not to be seen
    ],
)
def test_a_units_limits_and_those_above_it_count(
    tmp_path: Path, groups: dict[str, str], expected: int
) -> None:
    root = machine(tmp_path, 700, UNIFIED, UNIT, {"cgroup.controllers": "cpu memory\n", **groups})
    assert available_bytes(root) == expected * MIB


def test_a_container_of_version_2_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    mounts = (
        "1023 1010 0:27 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime "
        "- cgroup2 cgroup rw,nsdelegate\n"
    )
    root = machine(tmp_path, 700, mounts, "0::/\n", group_2("", 100, most=256))
    assert available_bytes(root) == 156 * MIB


def test_a_container_without_a_namespace_of_groups_is_told_of_its_place_outside(
    tmp_path: Path,
) -> None:
    mounts = "1023 1010 0:27 /docker/1f2e /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n"
    root = machine(tmp_path, 700, mounts, "0::/docker/1f2e\n", group_2("", 100, most=256))
    assert available_bytes(root) == 156 * MIB
    # As one in another namespace sees it.
    (tmp_path / "proc/self/cgroup").write_text("0::/../../elsewhere\n")
    assert available_bytes(tmp_path) == 156 * MIB


USER = "user.slice/user-1000.slice/"
MEMBERSHIP_1 = """\
12:cpu,cpuacct:/user.slice
9:memory:/user.slice/user-1000.slice
1:name=systemd:/user.slice
0::/user.slice
"""


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({**group_1("", 300, None), **group_1(USER, 200, None)}, 700),
        (group_1(USER, 200, 512), 313),  # the mebibyte of active pages of files included
        (group_1(USER, 200, 512, inactive=50), 363),
        ({**group_1(USER, 200, None), **group_1("user.slice/", 300, 400)}, 101),
        (group_1(USER, 200, None, hierarchical=450), 251),  # of a group that cannot be seen
    ],
)
def test_version_1_counts_as_well(tmp_path: Path, groups: dict[str, str], expected: int) -> None:
    root = machine(
        tmp_path,
        700,
        SEPARATE,
        MEMBERSHIP_1,
        {**groups, "unified/cgroup.procs": "1\n", "cpu,cpuacct/cpu.shares": "1024\n"},
    )
    assert available_bytes(root) == expected * MIB


def test_a_container_of_version_1(tmp_path: Path) -> None:
    mounts = (
        "1100 1090 0:35 /docker/1f2e /sys/fs/cgroup/memory ro,nosuid master:20 "
        "- cgroup cgroup rw,memory\n"
    )
    root = machine(tmp_path, 700, mounts, "9:memory:/docker/1f2e\n", group_1("", 100, 256))
    assert available_bytes(root) == 157 * MIB


def test_a_group_counts_where_the_machines_own_figures_are_hidden(tmp_path: Path) -> None:
    root = machine(tmp_path, 700, UNIFIED, UNIT, group_2(SERVICE, 40, most=500))
    (root / "proc/meminfo").unlink()
    assert available_bytes(root) == 460 * MIB


def test_no_limit_of_version_1_is_no_figure(tmp_path: Path) -> None:
    root = machine(tmp_path, 700, SEPARATE, MEMBERSHIP_1, group_1(USER, 200, None))
    (root / "proc/meminfo").unlink()
    assert available_bytes(root) is None


@pytest.mark.parametrize("torn", ["memory.current", "memory.stat"])
def test_what_cannot_be_read_counts_as_no_limit(tmp_path: Path, torn: str) -> None:
    root = machine(tmp_path, 700, UNIFIED, "0::/\n", group_2("", 100, most=256))
    (root / "sys/fs/cgroup" / torn).write_text("?\n")
    assert available_bytes(root) == 700 * MIB


# This machine.


@linux
def test_this_machine_has_some_memory() -> None:
    available = available_bytes()
    assert available is not None
    assert 0 < available <= psutil.virtual_memory().total


TELL = (
    "import sys; sys.stdin.readline(); "
    "from genkidama.runtime.machine import available_bytes; print(available_bytes())"
)


@pytest.fixture
def limited() -> Iterator[Path]:
    """A control group of version 1 or 2 that may take 1 GiB."""
    top = Path("/sys/fs/cgroup")
    parent, name = (
        (top / "memory", "memory.limit_in_bytes")
        if (top / "memory").is_dir()
        else (top, "memory.max")
    )
    group = parent / f"genkidama-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / name).write_text(str(1 << 30))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    yield group
    deadline = time.monotonic() + 10.0
    while group.exists() and time.monotonic() < deadline:
        with suppress(OSError):  # the process in it is not quite gone
            group.rmdir()
            break
        time.sleep(0.02)


@linux
def test_a_process_in_a_group_of_a_gibibyte_has_less_than_that(limited: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TELL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        (limited / "cgroup.procs").write_text(str(process.pid))
        told, _ = process.communicate("\n", timeout=30)
    assert (1 << 30) - 50 * MIB < int(told) < 1 << 30


#: These run in processes of their own: a test suite has threads that write, too, and a heap with
#: room to spare.
WRITING = """
from genkidama.runtime.machine import private_bytes
MIB = 1 << 20
before = private_bytes()
written = b"1" * (20 * MIB)
print((private_bytes() - before) // MIB)
"""

PASSING = """
from genkidama.runtime.machine import forget_peak, since_peak_bytes
MIB = 1 << 20
passing = lambda size: len(b"1" * size)
passing(90 * MIB)
forget_peak()
before = since_peak_bytes()
passing(40 * MIB)
print(before // MIB, since_peak_bytes() // MIB)
"""


#: How many pages of 50 passing blocks of 1 MiB are new ones, before and after.
KEEPING = """
from resource import RUSAGE_SELF, getrusage
from genkidama.runtime.machine import keep_large_blocks
def new_pages(size):
    before = getrusage(RUSAGE_SELF).ru_minflt
    for _ in range(50):
        b"1" * size
    return getrusage(RUSAGE_SELF).ru_minflt - before
print(new_pages(1 << 20))
keep_large_blocks()
print(new_pages(1 << 20))
"""


def said_by(program: str, **variables: str) -> list[int]:
    return [int(word) for word in python("-c", program, **variables).stdout.split()]


@linux
def test_what_a_process_writes_is_its_own() -> None:
    (grown,) = said_by(WRITING)
    assert 19 <= grown < 25


def test_without_the_sum_the_parts_are_summed(tmp_path: Path) -> None:
    assert private_bytes(tmp_path) is None
    parts = (
        "7f0 [heap]\nRss: 40 kB\nPrivate_Clean: 3 kB\nPrivate_Dirty: 12 kB\n"
        "7f1 [stack]\nPrivate_Dirty: 8 kB\n"
    )
    assert private_bytes(written(tmp_path, {"proc/self/smaps": parts})) == 20 * 1024
    total = {"proc/self/smaps_rollup": "Rss: 40 kB\nPrivate_Dirty: 16 kB\n"}
    assert private_bytes(written(tmp_path, total)) == 16 * 1024


@linux
def test_what_was_given_back_is_known_from_the_peak() -> None:
    before, after = said_by(PASSING)
    if before > 10:
        pytest.skip("this kernel does not forget peaks")
    assert 35 < after < 60


def test_a_peak_may_be_unknown(tmp_path: Path) -> None:
    assert since_peak_bytes(tmp_path) == 0
    status = "Name:\tpython\nVmHWM:\t  900 kB\nVmRSS:\t  700 kB\n"
    assert since_peak_bytes(written(tmp_path, {"proc/self/status": status})) == 200 * 1024


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone is told")
def test_a_process_keeps_large_blocks_though_it_began_without() -> None:
    before, after = said_by(KEEPING, MALLOC_MMAP_THRESHOLD_="32768")
    assert before > 50 * 10
    assert after < before / 10


@linux
def test_libraries_that_are_unmapped_are_mapped_again_where_they_run() -> None:
    """In a process of its own: what this one has mapped, others may share."""
    code = """
import re, zlib
from pathlib import Path
from genkidama.runtime.machine import unmap_libraries

def mapped():
    text = Path("/proc/self/smaps").read_text()
    sizes = re.findall(r" r-[x-]p .*numpy.*[.]so\\S*\\n(?:[A-Z].*\\n)*?Rss: +(\\d+) kB", text)
    return sum(map(int, sizes))

import numpy as np
numbers = np.arange(1e4).reshape(100, 100)
expected = numbers @ numbers
before = mapped()
unmap_libraries()
after = mapped()
assert (numbers @ numbers == expected).all()
print(before, after)
"""
    before, after = said_by(code)
    assert before > 1000 and after < before / 4


PARENT = """
import os, subprocess, sys, time
begin, end = "import os, time; from genkidama.runtime import machine", "time.sleep(60)"
code = "\\n".join([begin, sys.argv[1], end])
print(subprocess.Popen([sys.executable, "-c", code, str(os.getpid())]).pid, flush=True)
time.sleep(60)
"""


def started(code: str, argument: str) -> tuple[subprocess.Popen[str], list[str]]:
    """The program, and the first line that it says."""
    program = subprocess.Popen(
        [sys.executable, "-c", code, argument],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert program.stdout is not None
    return program, program.stdout.readline().split()


def killed(program: subprocess.Popen[str]) -> None:
    program.kill()
    program.wait()
    assert program.stdout is not None
    program.stdout.close()


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("machine.end_with_parent()", True),
        ("pass", False),
        ("machine.end_with_parent(1)", True),  # its starter was gone before
    ],
)
def test_a_process_ends_with_its_parent_if_it_wants_to(code: str, ends: bool) -> None:
    program, (number,) = started(
        PARENT, f"{code}; open(f'/tmp/genkidama-test-{{os.getpid()}}', 'w')"
    )
    mark = Path(f"/tmp/genkidama-test-{number}")
    until(lambda: mark.exists() or gone(int(number)), "its birth", 20.0)
    killed(program)
    mark.unlink(missing_ok=True)
    if ends:
        until(lambda: gone(int(number)), "its end", 10.0)
    else:
        assert not gone(int(number))
        os.kill(int(number), signal.SIGKILL)


def test_a_pipe_that_has_ended_before_ends_the_process_at_once() -> None:
    reader, writer = os.pipe()
    os.close(writer)
    process = os.fork()
    if process == 0:
        end_with_pipe(reader)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 1
    os.close(reader)


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "room", "raised"),
    [
        (1024, 4096, 100, 100, None),
        (1024, 4096, 2000, 2000, 2000 + 10 + RESERVED),
        (1024, 1024, 2000, 1024 - 10 - RESERVED, None),
        (256, 1024, 2000, 1024 - 10 - RESERVED, 1024),
        (100, 100, 5, 100 - 10 - RESERVED, None),  # not even for one
        (1024, resource.RLIM_INFINITY, 2000, 2000, 2000 + 10 + RESERVED),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 2000, 2000, None),
    ],
)
def test_the_limit_is_raised_as_far_as_needed_and_allowed(
    monkeypatch: pytest.MonkeyPatch,
    soft: int,
    hard: int,
    wanted: int,
    room: int,
    raised: int | None,
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: told.append(limits))
    monkeypatch.setattr("genkidama.runtime.machine._open", lambda: 10)
    assert descriptors_left(wanted) == room
    assert told == ([] if raised is None else [(raised, hard)])


CODE = """
import json, os
from genkidama.runtime.machine import limit_growth
from genkidama.runtime.shared_block import Block
def fits(size):
    try:
        return len(bytearray(size)) == size
    except MemoryError:
        return False
for limit in (100 << 20, None):
    if not os.fork():
        limit_growth(limit)
        print(json.dumps([fits(50 << 20), fits(200 << 20)]))
        limit_growth(1 << 40)  # a tighter one stays
        print(json.dumps(fits(200 << 20)), flush=True)
        os._exit(0)
    os.wait()
"""


def test_a_process_gets_no_more_than_it_may_take() -> None:
    said = [json.loads(line) for line in python("-c", CODE).stdout.splitlines()]
    assert said == [[True, False], False, [True, True], True]


def test_what_a_process_takes_for_itself_is_counted() -> None:
    before = own_bytes()
    # Not by malloc, which may have so much left.
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as taken:
        for _ in range(64):
            taken.write(b"x" * (1 << 20))
        assert (60 << 20) < own_bytes() - before < (80 << 20)
