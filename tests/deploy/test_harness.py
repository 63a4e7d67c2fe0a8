"""The harness itself: real systems boot, behave as Raspberry Pis do, and leave nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.deploy.fleet import GIB, Failed, Fleet, base_image, requirements
from tests.helpers import ROOT, until

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]

SYSTEMS = {"parent": "10.77.0.10", "pi1": "10.77.0.11"}

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
            # What a command leaves behind goes too.
            fleet.run(["sh", "-c", "setsid sleep 1000 & sleep 1000"], seconds=1)
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
                # A fleet that lives is left alone, and two can have the same addresses.
                assert len(traces(name)) > 10
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
