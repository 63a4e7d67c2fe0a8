"""The harness itself: real systems boot, behave as Raspberry Pis do, and leave nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.deploy.fleet import GIB, Failed, Fleet, base_image, requirements
from tests.helpers import ROOT, until

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]

SYSTEMS = {"parent": "10.77.0.10", "pi1": "10.77.0.11"}

#: A service that says READY=1 and feeds its watchdog for as long as there is no file /run/hang.
SERVICE = """\
import os, socket, time
bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
bell.connect(os.environ["NOTIFY_SOCKET"].replace("@", "\\0", 1))
bell.send(b"READY=1\\nSTATUS=It works.")
while not os.path.exists("/run/hang"):
    bell.send(b"WATCHDOG=1")
    time.sleep(0.1)
time.sleep(1000)
"""

#: Hardened with all that works in systemd-nspawn and that a Python program bears.
UNIT = """\
[Service]
Type=notify
ExecStart=/usr/bin/python3 /srv/service.py
WatchdogSec=2
Restart=on-failure
RestartSec=0.2
DynamicUser=yes
StateDirectory=guarded
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
PrivateUsers=yes
PrivateMounts=yes
PrivateIPC=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
ProtectProc=invisible
ProcSubset=pid
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
NoNewPrivileges=yes
RemoveIPC=yes
KeyringMode=private
DevicePolicy=closed
CapabilityBoundingSet=
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM
UMask=0077
OOMScoreAdjust=500

[Install]
WantedBy=multi-user.target
"""

#: Succeeds if a machine answers within two seconds.
REACH = "timeout 2 bash -c '< /dev/tcp/{}/22'"

#: A fleet in a process of its own, for tests that end that process.
APART = """\
import sys, time
from pathlib import Path
from tests.deploy.fleet import Fleet
try:
    with Fleet(Path(sys.argv[1]), Path(sys.argv[2]), {"pi1": "10.77.0.11"}) as fleet:
        print(fleet.name, flush=True)
        time.sleep(1000)
except KeyboardInterrupt:
    sys.exit(3)
"""


@pytest.fixture(scope="module", autouse=True)
def _needs() -> None:
    if reason := requirements():
        pytest.skip(reason)


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, _needs: None
) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp(request.param), base_image(request.param), SYSTEMS) as fleet:
        yield fleet


def property_of(fleet: Fleet, system: str, unit: str, name: str) -> str:
    return fleet.ssh(system, f"systemctl show --value --property={name} {unit}").strip()


def traces(name: str) -> list[str]:
    """All that there is on this machine of the fleet `name`."""
    found = [
        line
        for line in Path("/proc/self/mounts").read_text().splitlines()
        if line.startswith(f"{name}-")
    ]
    places = (
        Path("/run/netns"),
        Path("/run/lock"),
        Path("/run/systemd/nspawn"),
        Path("/sys/fs/cgroup"),
    )
    found += [
        str(path)
        for place in places
        for path in (*place.glob(f"{name}*"), *place.glob(f"*/{name}*"))
    ]
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            ended = (process / "stat").read_text().rpartition(")")[2].split()[
                0
            ] in "ZX"  # init has not yet asked what became of it
            found += (
                [f"process {process.name}"]
                if f"/{name}/" in (process / "cgroup").read_text() and not ended
                else []
            )
    return found


def test_systems_run_and_are_none_others(fleet: Fleet) -> None:
    seen = []
    for system in SYSTEMS:
        assert (
            fleet.ssh(system, "systemctl is-system-running --wait; systemctl --failed --no-legend")
            == "running\n"
        )
        assert fleet.ssh(system, "whoami; sudo whoami; hostname") == f"pi\nroot\n{system}\n"
        seen.append(
            fleet.ssh(
                system,
                "cat /etc/machine-id /etc/ssh/ssh_host_*.pub /proc/sys/kernel/random/boot_id",
            ).splitlines()
        )
        assert (
            abs(float(fleet.ssh(system, "date +%s.%N")) - time.time()) < 5
        )  # the clock is the host's
    assert len(seen[0]) == len(seen[1]) == 3 and not set(seen[0]) & set(seen[1])


def test_a_system_lacks_what_a_fresh_card_lacks_and_can_install_it(fleet: Fleet) -> None:
    with pytest.raises(Failed, match="python3-venv"):
        fleet.ssh("pi1", "python3 -m venv /tmp/environment")
    fleet.ssh("pi1", "sudo apt-get -q update && sudo apt-get -q install --yes python3-venv")
    fleet.ssh(
        "pi1", "python3 -m venv /tmp/environment && /tmp/environment/bin/python -c 'import pip'"
    )
    with pytest.raises(Failed):
        fleet.ssh("parent", "python3 -m venv /tmp/environment")  # each has a disk of its own
    assert not (fleet.base / "tmp/environment").exists()


def test_systems_find_each_other_by_multicast_and_nothing_else(fleet: Fleet) -> None:
    for asking, asked in (("pi1", "parent"), ("parent", "pi1")):
        answer = until(
            lambda: fleet.ssh(asking, f"getent ahostsv4 {asked}.local", check=False),  # noqa: B023
            f"{asked}.local",
        )
        assert answer.split()[0] == SYSTEMS[asked]
    fleet.ssh("pi1", REACH.format("10.77.0.10"))
    for routes in (fleet.ssh("pi1", "ip route"), fleet.run(["ip", "route"]).stdout):
        assert len(routes.splitlines()) == 1 and routes.startswith("10.77.0.0/24 ")


def test_a_hardened_service_notifies_and_its_watchdog_restarts_it(fleet: Fleet) -> None:
    (fleet.root("pi1") / "srv/service.py").write_text(SERVICE)
    (fleet.root("pi1") / "etc/systemd/system/guarded.service").write_text(UNIT)
    fleet.ssh("pi1", "sudo systemctl daemon-reload && sudo systemctl enable --now --quiet guarded")
    assert property_of(fleet, "pi1", "guarded", "StatusText") == "It works."
    confined = "/proc/$(systemctl show --value --property=MainPID guarded)"
    assert fleet.ssh(
        "pi1", f"sudo grep -E 'CapBnd|Seccomp:|NoNewPrivs' {confined}/status"
    ).split() == [*("CapBnd:", "0000000000000000", "NoNewPrivs:", "1", "Seccomp:", "2")]
    fleet.ssh("pi1", f"sudo readlink {confined}/ns/user | grep -v $(readlink /proc/self/ns/user)")
    fleet.ssh("pi1", "sudo touch /run/hang")
    until(
        lambda: int(property_of(fleet, "pi1", "guarded", "NRestarts")) > 0,
        "a restart by the watchdog",
    )
    fleet.ssh("pi1", "sudo rm /run/hang")
    until(lambda: property_of(fleet, "pi1", "guarded", "ActiveState") == "active", "the service")
    journal = fleet.ssh("pi1", "sudo journalctl --no-pager -o cat -u guarded")
    assert "Watchdog timeout" in journal
    # Sandboxing that systemd leaves out where it cannot be had would be missed here: it says so.
    assert "proceeding without" not in journal and "ignoring" not in journal


def test_a_power_cut_keeps_the_disk_and_says_goodbye_to_nobody(fleet: Fleet) -> None:
    before = fleet.ssh(
        "pi1", "echo kept > kept; sudo touch /run/lost; cat /proc/sys/kernel/random/boot_id"
    )
    connect = (
        "import socket, sys; s = socket.create_connection(('10.77.0.11', 22)); s.recv(100); "
        "print('connected', flush=True); "
    )
    listen = "s.settimeout(2); sys.exit(f'was told: {s.recv(1)}')"
    command = [
        "ip",
        "netns",
        "exec",
        f"{fleet.name}-controller",
        sys.executable,
        "-c",
        connect + listen,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as peer:
        assert peer.stdout is not None and peer.stderr is not None
        assert peer.stdout.readline() == "connected\n"
        began = time.monotonic()
        fleet.pull_plug("pi1")
        assert time.monotonic() - began < 2
        assert "TimeoutError" in peer.stderr.read()
    with pytest.raises(Failed, match=r"10\.77\.0\.11"):
        fleet.ssh("pi1", "true")
    fleet.boot("pi1")
    assert fleet.ssh("pi1", "cat kept; ls /run/lost 2>/dev/null || echo gone") == "kept\ngone\n"
    assert fleet.ssh("pi1", "cat /proc/sys/kernel/random/boot_id") != before
    assert (
        fleet.ssh("pi1", "systemctl is-system-running --wait; systemctl is-active guarded")
        == "running\nactive\n"
    )
    last = fleet.ssh("pi1", "sudo journalctl --boot=-1 --no-pager -o cat")
    assert (
        "Reached target" in last and "Shutting down" not in last and "Withdrawing" not in last
    )  # the journal ends in mid-sentence


def test_reboots_are_orderly_also_from_inside(fleet: Fleet) -> None:
    read = "cat /proc/sys/kernel/random/boot_id"
    boots = [fleet.ssh("parent", read)]
    fleet.reboot("parent")
    boots.append(fleet.ssh("parent", read))
    fleet.ssh("parent", "sudo reboot", check=False)
    boots.append(until(lambda: {fleet.ssh("parent", read, check=False)} - {*boots, ""}).pop())
    assert len(set(boots)) == 3
    assert "Shutting down" in fleet.ssh("parent", "sudo journalctl --boot=-1 --no-pager -o cat")


def test_a_cable_can_be_pulled_and_put_back(fleet: Fleet) -> None:
    before = fleet.ssh("pi1", "cat /proc/sys/kernel/random/boot_id")
    fleet.cut("pi1")
    with pytest.raises(Failed):
        fleet.ssh("parent", REACH.format("10.77.0.11"))
    fleet.join("pi1")
    fleet.ssh("parent", REACH.format("10.77.0.11"))
    assert fleet.ssh("pi1", "cat /proc/sys/kernel/random/boot_id") == before


def test_a_command_that_hangs_or_fails_says_what_it_said(fleet: Fleet) -> None:
    with pytest.raises(Failed, match=r"(?s)still running after 1 s.*before"):
        fleet.ssh("pi1", "echo before; sleep 100", seconds=1)
    with pytest.raises(Failed, match=r"(?s)exit status 7.*out.*error"):
        fleet.ssh("pi1", "echo out; echo error >&2; exit 7")
    assert (
        fleet.run(["sh", "-c", "echo $WORD; pwd"], cwd=Path("/"), WORD="said").stdout == "said\n/\n"
    )


def test_memory_is_limited_and_measured(tmp_path: Path) -> None:
    with Fleet(tmp_path, base_image("bookworm"), {"pi1": "10.77.0.11"}, memory=GIB // 4) as fleet:
        first = fleet.memory("pi1")
        assert (
            5e6 < first.used < 100e6 and first.used <= first.peak <= GIB // 4 and first.killed == 0
        )
        fleet.ssh("pi1", "head -c 50M /dev/zero > file")
        assert fleet.memory("pi1").used < first.used + 20e6  # a cached file is no burden
        fleet.ssh("pi1", "head -c 50M /dev/zero > /dev/shm/file")
        assert fleet.memory("pi1").used > first.used + 45e6  # shared memory is
        assert "Killed" in fleet.ssh(
            "pi1",
            "sudo choom --adjust 1000 -- python3 -c 'bytearray(300 << 20)' 2>&1 || echo Killed",
        )
        last = fleet.memory("pi1")
        assert last.killed == 1 and last.failures > 0 and last.peak == GIB // 4
        assert fleet.ssh("pi1", "hostname") == "pi1\n"


def test_close_leaves_nothing_but_logs(tmp_path: Path) -> None:
    with Fleet(tmp_path, base_image("bookworm"), {"pi1": "10.77.0.11"}) as fleet:
        assert len(traces(fleet.name)) > 10
        with pytest.raises(Failed):
            fleet.run(
                ["sh", "-c", "setsid sleep 1000 & sleep 1000"], seconds=1
            )  # what a command leaves behind goes too
    assert traces(fleet.name) == []
    left = {path.name for path in tmp_path.iterdir()}
    assert "pi1" not in left and "pi1.log" in left
    assert not any(
        "sleep 1000" in line
        for line in subprocess.run(
            ["ps", "-eo", "args"], capture_output=True, text=True
        ).stdout.splitlines()
    )


def test_a_system_that_does_not_boot_shows_its_console_and_leaves_nothing(tmp_path: Path) -> None:
    for folder in ("etc/ssh", "home/pi/.ssh", "usr"):
        (tmp_path / "base" / folder).mkdir(parents=True)
    fleet = Fleet(tmp_path / "fleet", tmp_path / "base", {"pi1": "10.77.0.11"})
    with pytest.raises(Failed, match=r"(?s)pi1 ended; its console:.*/fleet/pi1/root"), fleet:
        pass
    assert traces(fleet.name) == []


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_when_a_run_is_ended(tmp_path: Path, end: signal.Signals) -> None:
    command = [sys.executable, "-c", APART, str(tmp_path / "ended"), str(base_image("bookworm"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            name = process.stdout.readline().strip()
            assert len(traces(name)) > 10
            with Fleet(
                tmp_path / "beside", base_image("bookworm"), {"pi1": "10.77.0.11"}
            ) as beside:
                assert (
                    len(traces(name)) > 10
                )  # a fleet that lives is left alone, and two can have the same addresses
                assert beside.ssh("pi1", "hostname") == "pi1\n"
            process.send_signal(end)
            process.wait()
        finally:
            process.kill()
    if end == signal.SIGINT:
        assert process.returncode == 3
    else:
        assert len(traces(name)) > 10
        with Fleet(tmp_path / "next", base_image("bookworm"), {"pi1": "10.77.0.11"}):
            assert traces(name) == []  # the next fleet has removed it
    assert traces(name) == [] and not (tmp_path / "ended/pi1").exists()


def test_a_machine_that_cannot_is_told_why(tmp_path: Path) -> None:
    tell = "from tests.deploy.fleet import requirements; print(requirements())"
    bare = {"PATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    nobody = ["/usr/bin/unshare", "--user", sys.executable, "-c", tell]
    told = subprocess.run(nobody, cwd=ROOT, env=bare, capture_output=True, text=True, check=True)
    assert "Booting systems needs root" in told.stdout
    assert "`apt-get install systemd-container mmdebstrap iproute2 openssh-client`" in told.stdout
    confined = ["setpriv", "--bounding-set=-sys_admin", sys.executable, "-c", tell]
    told = subprocess.run(confined, cwd=ROOT, capture_output=True, text=True, check=True)
    assert told.stdout.startswith("The kernel refuses namespaces, overlays or bridges (unshare: ")
