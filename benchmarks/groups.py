"""Control groups: what runs in one has a share of the CPU cores, and of memory, enforced by the
kernel.

Both versions of Linux' control groups do: version 1 with its controllers `cpu`, `cpuacct`,
`freezer` and `memory`, version 2 with `cpu` and `memory`. It takes root.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from genkidama.errors import EnvironmentFailure

_ROOT = Path("/sys/fs/cgroup")

#: The least that the kernel gives or divides: a quota and a period of 1 ms, a period of 1 s.
_LEAST_US, _LONGEST_US = 1_000, 1_000_000

#: Short enough that a small share is slow rather than absent for long.
_PERIOD_US = 10_000


def quota(share: float) -> tuple[int, int]:
    """Microseconds of CPU time, and of the period in which a group may use so many.

    Args:
        share: of one core; 0.1 is a tenth, 2 are two cores.

    Raises:
        ValueError: it is below a thousandth, which no kernel can give.
    """
    if share < _LEAST_US / _LONGEST_US:
        raise ValueError(f"a share of {share:g} cores: the kernel gives 0.001 at least")
    period = max(_PERIOD_US, min(_LONGEST_US, round(_LEAST_US / share)))
    return max(_LEAST_US, round(share * period)), period


#: The weights of version 1 and 2. A measured group comes before what else runs on this computer:
#: what it is entitled to, it gets.
_WEIGHTS = {"first": ("262144", "10000"), "usual": ("1024", "100")}


class Group:
    """The control group of one machine: what runs in it shares its CPU time.

    Args:
        name: unique on this machine.
        memory: bytes that it may take, without swap; 0 if the group does not limit them.
        weight: a key of `_WEIGHTS`.

    Raises:
        EnvironmentFailure: there are no control groups that this user may make.
    """

    def __init__(self, name: str, memory: int = 0, weight: str = "first") -> None:
        self._second = (_ROOT / "cgroup.controllers").exists()
        limited = ("memory",) if memory else ()
        controllers = ("",) if self._second else ("cpu", "cpuacct", "freezer", *limited)
        self._folders = {controller: _ROOT / controller / name for controller in controllers}
        try:
            if self._second:
                (_ROOT / "cgroup.subtree_control").write_text("+cpu" + " +memory" * bool(memory))
            for folder in self._folders.values():
                folder.mkdir(exist_ok=True)
            if self._second:
                self._write("", "cpu.weight", _WEIGHTS[weight][1])
            else:
                self._write("cpu", "cpu.shares", _WEIGHTS[weight][0])
            if memory:
                self._limit(memory)
        except OSError as error:
            raise EnvironmentFailure(
                f"{error.filename}: no control group: {error.strerror}; run it as root on Linux "
                "with control groups mounted below /sys/fs/cgroup (on a Raspberry Pi memory needs "
                "cgroup_enable=memory in cmdline.txt)"
            ) from None

    def enter(self) -> None:
        """Moves the calling process in; for `preexec_fn`."""
        self.take(os.getpid())

    def take(self, pid: int) -> None:
        """Moves this process in."""
        for folder in self._folders.values():
            (folder / "cgroup.procs").write_text(str(pid))

    def hold(self, share: float) -> None:
        """From now on the group gets `share` of a core, and no more."""
        limit, period = quota(share)
        if self._second:
            self._write("", "cpu.max", f"{limit} {period}")
        else:
            self._write("cpu", "cpu.cfs_period_us", str(period))
            self._write("cpu", "cpu.cfs_quota_us", str(limit))

    def release(self) -> None:
        """Takes the limit away."""
        if self._second:
            self._write("", "cpu.max", "max")
        else:
            self._write("cpu", "cpu.cfs_quota_us", "-1")

    def freeze(self) -> None:
        """Stops every process of the group where it is."""
        self._freezer("FROZEN", "1")

    def thaw(self) -> None:
        """Lets them go on."""
        self._freezer("THAWED", "0")

    def used(self) -> float:
        """Seconds of CPU time that the group has used so far."""
        if self._second:
            return float(self._statistics("", "cpu.stat")["usage_usec"]) * 1e-6
        return int((self._folders["cpuacct"] / "cpuacct.usage").read_text()) * 1e-9

    def throttled(self) -> int:
        """Periods in which the group wanted more than it may have."""
        return self._statistics("" if self._second else "cpu", "cpu.stat")["nr_throttled"]

    def taken(self) -> tuple[int, int]:
        """Bytes that only the end of a process, or swap, gives back; and those in swap."""
        found = self._statistics("" if self._second else "memory", "memory.stat")
        if not self._second:
            return found["total_rss"] + found["total_shmem"], found.get("total_swap", 0)
        swap = self._folders[""] / "memory.swap.current"
        return found["anon"] + found["shmem"], int(swap.read_text()) if swap.exists() else 0

    def peak(self) -> int:
        """The most bytes that the group was charged with, pages of files included.

        0 if the kernel keeps no peak: version 2 does since Linux 5.19.
        """
        path = self._memory("memory.peak", "memory.max_usage_in_bytes")
        return int(path.read_text()) if path.exists() else 0

    def killed(self) -> int:
        """Processes that the kernel has killed for want of memory."""
        place = ("", "memory.events") if self._second else ("memory", "memory.oom_control")
        return self._statistics(*place)["oom_kill"]

    def close(self) -> None:
        """Kills what is left in the group and removes it."""
        self.thaw()
        self.release()
        procs = next(iter(self._folders.values())) / "cgroup.procs"
        for _ in range(200):
            left = procs.read_text().split()
            if not left:
                break
            for pid in left:
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.05)
        for folder in self._folders.values():
            folder.rmdir()

    def _limit(self, memory: int) -> None:
        self._memory("memory.max", "memory.limit_in_bytes").write_text(str(memory))
        with suppress(OSError):  # a kernel without swap has no such file
            swap = self._memory("memory.swap.max", "memory.memsw.limit_in_bytes")
            swap.write_text("0" if self._second else str(memory))

    def _memory(self, second: str, first: str) -> Path:
        return self._folders[""] / second if self._second else self._folders["memory"] / first

    def _statistics(self, controller: str, file: str) -> dict[str, int]:
        text = (self._folders[controller] / file).read_text()
        return {name: int(value) for name, value in (line.split() for line in text.splitlines())}

    def _freezer(self, first: str, second: str) -> None:
        if self._second:
            self._write("", "cgroup.freeze", second)
        else:
            self._write("freezer", "freezer.state", first)

    def _write(self, controller: str, file: str, value: str) -> None:
        (self._folders[controller] / file).write_text(value)
