"""Each machine in a network namespace of its own, behind a link; or all on the loopback."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from benchmarks.processes import ROOT, cpu_seconds
from studies.scaling.matrix import Link

#: A network that nobody else uses: each link takes two of its addresses.
_NET = "10.213"

_COUNT = re.compile(r"bytes_(sent|received):(\d+)")


class Network:
    """The machines' network. Entering makes it, leaving removes it.

    Args:
        machines: how many.
        link: what each of them is behind; None leaves all on the loopback.
        seed: of the lost packets.
        mtu: the largest packet, in bytes.
        name: of this network, if one process makes several at a time.
    """

    def __init__(
        self, machines: int, link: Link | None, seed: int, mtu: int = 1500, name: str = ""
    ) -> None:
        self._link = link
        self._mtu = mtu
        self._seed = seed
        stem = f"scaling-{os.getpid()}{name and '-'}{name}"
        self._parent = f"{stem}-parent"
        self._machines = [f"{stem}-{number}" for number in range(machines)]
        self._relay: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Network:
        if self._link is None:
            return self
        try:
            for name in self.namespaces:
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            link = self._link
            figures = (link.megabits, link.delay_ms, link.loss, self._seed)
            script = str(ROOT / "benchmarks/relay.py")
            self._relay = subprocess.Popen(
                [sys.executable, script, self._parent, *map(str, figures), *self._machines],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert self._relay.stdout is not None
            if self._relay.stdout.readline() != b"ready\n":
                raise SystemExit("the links do not come up; they take root and /dev/net/tun")
            # Machines reach each other through the parent's namespace, as through a router.
            forward = "/proc/sys/net/ipv4/ip_forward"
            _ip("netns", "exec", self._parent, "sh", "-c", f"echo 1 > {forward}")
            for number, name in enumerate(self._machines):
                own, parents = self.address(number), self.parents_address(number)
                _raise(name, "uplink", own, parents, self._mtu)
                _raise(self._parent, f"link{number}", parents, own, self._mtu)
                _ip("-n", name, "route", "add", "default", "dev", "uplink")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._relay is not None:
            with self._relay:  # closes its input, which ends it
                pass
        if self._link is not None:
            for name in self.namespaces:
                subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)

    @property
    def namespaces(self) -> list[str]:
        """The parent's, and each machine's."""
        return [self._parent, *self._machines]

    def address(self, machine: int) -> str:
        """The machine's own address."""
        return "127.0.0.1" if self._link is None else f"{_NET}.{machine}.2"

    def parents_address(self, machine: int) -> str:
        """The parent's address, as the machine reaches it."""
        return "127.0.0.1" if self._link is None else f"{_NET}.{machine}.1"

    def at_parent(self, command: list[str]) -> list[str]:
        """The command that runs at the parent's place."""
        return command if self._link is None else _inside(self._parent, command)

    def at(self, machine: int, command: list[str]) -> list[str]:
        """The command that runs at a machine's place."""
        return command if self._link is None else _inside(self._machines[machine], command)

    def cut(self, machines: list[int]) -> None:
        """Cuts these machines off and mends the links of all others."""
        assert self._relay is not None, "the loopback cannot be cut"
        assert self._relay.stdin is not None
        self._relay.stdin.write(f"{' '.join(map(str, machines))}\n".encode())
        self._relay.stdin.flush()

    def traffic(self, port: int) -> dict[str, tuple[int, int]]:
        """Bytes that the parent has sent and received, of each connection to its port.

        They are the kernel's counts, without headers of packets, and what was sent again counts
        again. The keys are the other ends' addresses.
        """
        ask = ["ss", "-tinHO", f"sport = :{port}"]
        lines = subprocess.run(self.at_parent(ask), capture_output=True, text=True, check=True)
        found = {}
        for line in lines.stdout.splitlines():
            count = {name: int(number) for name, number in _COUNT.findall(line)}
            found[line.split()[4]] = (count.get("sent", 0), count.get("received", 0))
        return found

    def used(self) -> float:
        """Seconds of CPU time that the links have taken."""
        return 0.0 if self._relay is None else cpu_seconds(self._relay.pid)


def _raise(namespace: str, device: str, own: str, peer: str, mtu: int) -> None:
    _ip("-n", namespace, "addr", "add", own, "peer", peer, "dev", device)
    _ip("-n", namespace, "link", "set", "dev", device, "mtu", str(mtu), "up")


def _inside(namespace: str, command: list[str]) -> list[str]:
    return ["ip", "netns", "exec", namespace, *command]


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
