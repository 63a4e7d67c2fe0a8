"""A child on 64-bit ARM: Debian with nothing but Python, no network, and a wheelhouse.

The systems are real, the processor is emulated (or real, where the tests run on 64-bit ARM). What a
wheel for ARM holds is only known to work once it has run there: Box2D is compiled by us, and torch
has had releases that crash on a Raspberry Pi's processor.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.fleet import CACHE, bootstrap, kept
from tests.helpers import ROOT

NATIVE = platform.machine() == "aarch64"
BINFMT = Path("/proc/sys/fs/binfmt_misc")

#: Debian's release → its Python.
RELEASES = {"bookworm": "3.11", "trixie": "3.13"}

#: Python, what a command line is made of, and a library that apt needs and so every Debian has.
PACKAGES = (
    *("python3", "base-files", "base-passwd", "bash", "coreutils", "dash", "libc-bin", "mount"),
    "libstdc++6",
)

EPISODE = ROOT / "tests/deploy/one_episode.py"

#: How a child is installed; $1 is the wheelhouse. Compiling all of it to bytecode would take
#: minutes under emulation.
INSTALL = """set -eu
python3 -m venv --without-pip /opt/genkidama/venv
set -- "$1" "$1"/pip-*.whl
/opt/genkidama/venv/bin/python "$2/pip" install --no-index --no-deps --no-compile --quiet \\
    --root-user-action ignore "$1"/*.whl
"""

#: In namespaces of its own: $1 lower, $2 upper, $3 work, $4 merged, $5 wheels, then the command.
ENTER = """set -eu
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2,workdir=$3" "$4"
root=$4 wheels=$5
shift 5
mkdir -p "$root/wheels"
mount --bind -o ro "$wheels" "$root/wheels"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
ip link set lo up
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec env -i PATH=$path HOME=/root LANG=C.UTF-8 chroot "$root" "$@"
"""


def requirements() -> str | None:
    """Why this machine cannot run ARM systems, with the way out; None if it can."""
    if sys.platform != "linux":
        return "ARM systems run on Linux only: use a Linux machine."
    if os.geteuid():
        return "A system of another architecture needs root: run `sudo make test-deploy`."
    programs = {"mmdebstrap": "mmdebstrap", "unshare": "util-linux", "ip": "iproute2"}
    if not NATIVE:
        programs |= {"qemu-aarch64-static": "qemu-user-static", "update-binfmts": "binfmt-support"}
    if missing := [package for program, package in programs.items() if not shutil.which(program)]:
        return f"Programs are missing: run `apt-get install {' '.join(missing)}`."
    return None


pytestmark = [
    pytest.mark.deploy,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(requirements() is not None, reason=str(requirements())),
]


@dataclass(frozen=True)
class System:
    """A Debian without network, over an image that stays as it is."""

    release: str
    image: Path
    folder: Path
    wheels: Path

    def run(self, *command: str, given: str = "") -> str:
        """What a command in the system writes to standard output; it has to succeed."""
        layers = [self.image, self.folder / "upper", self.folder / "work", self.folder / "merged"]
        for layer in layers[1:]:
            layer.mkdir(exist_ok=True)
        # What is emulated must not keep others waiting that run beside it.
        enter = [
            *("nice", "-n", "10"),
            "unshare",
            "--mount",
            "--net",
            "--pid",
            "--ipc",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            ENTER,
            "sh",
        ]
        done = subprocess.run(
            [*enter, *map(str, layers), str(self.wheels), *command],
            input=given,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (
            f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        return done.stdout


@pytest.fixture(scope="module")
def emulation() -> Iterator[None]:
    """Lets the kernel start ARM programs; afterwards it is as it was."""
    mounted, enabled = (BINFMT / "register").exists(), (BINFMT / "qemu-aarch64").exists()
    if NATIVE or enabled:
        yield
        return
    if (
        not mounted
        and subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", BINFMT]).returncode
    ):
        pytest.skip("The kernel has no binfmt_misc: run `modprobe binfmt_misc` on the host.")
    subprocess.run(["update-binfmts", "--enable", "qemu-aarch64"], check=True)
    yield
    subprocess.run(["update-binfmts", "--disable", "qemu-aarch64"], check=True)
    if not mounted:
        subprocess.run(["umount", BINFMT], check=True)


def image_of(release: str) -> Path:
    """Debian's Python and what a shell needs.

    The packages are unpacked and not set up: their scripts would take minutes under emulation.
    """
    options = (
        "--arch=arm64",
        "--variant=extract",
        f"--include={','.join(PACKAGES)}",
        "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        '--customize-hook=cp "$1/usr/share/base-passwd/passwd.master" "$1/etc/passwd"',
        "--skip=check/qemu",
    )
    return kept(
        f"arm64-{release}", (release, options), lambda image: bootstrap(image, release, *options)
    )


def make_wheelhouse(python: str, *before: str) -> tuple[Path, str]:
    """The wheelhouse of a child on ARM, kept in the cache, and the program's last line."""
    program = [sys.executable, str(ROOT / "deploy/wheelhouse.py"), "--out", str(CACHE / "wheels")]
    arguments = ["--role", "child", "--platform", "aarch64", "--python", python]
    done = subprocess.run([*before, *program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return (
        CACHE / "wheels" / f"child-aarch64-py{python.replace('.', '')}",
        done.stdout.splitlines()[-1],
    )


@pytest.fixture(scope="module", params=RELEASES)
def system(
    request: pytest.FixtureRequest, emulation: None, tmp_path_factory: pytest.TempPathFactory
) -> System:
    release = request.param
    wheels, _ = make_wheelhouse(RELEASES[release])
    return System(release, image_of(release), tmp_path_factory.mktemp(release), wheels)


def test_a_second_wheelhouse_is_the_first_and_needs_no_network(system: System) -> None:
    _, said = make_wheelhouse(RELEASES[system.release], "unshare", "--net")
    assert said.startswith("unchanged: ")


def test_box2d_asks_for_no_more_than_debian_10_has(system: System, tmp_path: Path) -> None:
    if not shutil.which("readelf"):
        pytest.skip("Programs are missing: run `apt-get install binutils`.")
    (wheel,) = system.wheels.glob("box2d_py-*.whl")
    shutil.unpack_archive(wheel, tmp_path, "zip")
    library = next(tmp_path.rglob("_Box2D*.so"))
    read = ["readelf", "--wide", "--file-header", "--dynamic", "--dyn-syms", str(library)]
    found = subprocess.run(read, capture_output=True, text=True, check=True).stdout
    assert "AArch64" in found
    assert set(re.findall(r"\(NEEDED\).*\[(.*?)\.so", found)) <= {
        "libc",
        "libm",
        "libpthread",
        "libdl",
        "ld-linux-aarch64",
    }
    versions = {
        tuple(int(part) for part in version.split("."))
        for version in re.findall(r"@GLIBC_([\d.]+)", found)
    }
    assert versions and max(versions) <= (2, 28)


def test_a_child_installs_without_network_compiler_and_pip(
    system: System, figures: list[str]
) -> None:
    assert system.run("uname", "-m").strip() == "aarch64"
    assert (
        system.run(
            "sh",
            "-c",
            "ls /sys/class/net /usr/bin/pip* /usr/bin/g++ /usr/lib/python3/dist-packages/pip "
            "2> /dev/null || true",
        )
        == ""
    )
    began = time.monotonic()
    system.run("sh", "-c", INSTALL, "sh", "/wheels")
    size = sum(path.stat().st_size for path in system.wheels.glob("*.whl")) / 1e6
    figures.append(
        f"ARM, {system.release}: wheelhouse of {size:.0f} MB "
        f"installed in {time.monotonic() - began:.0f} s"
    )
    assert (
        system.run("/opt/genkidama/venv/bin/python", "-m", "pip", "check")
        == "No broken requirements found.\n"
    )


def test_it_plays_an_episode_learns_from_it_and_falls_as_here(
    system: System, figures: list[str]
) -> None:
    began = time.monotonic()
    program = EPISODE.read_text(encoding="utf-8")
    there = json.loads(system.run("/opt/genkidama/venv/bin/python", "-", given=program))
    figures.append(f"ARM, {system.release}: {there}, {time.monotonic() - began:.0f} s")
    assert there["machine"] == "aarch64" and there["python"].startswith(RELEASES[system.release])
    assert there["steps"] > 50 and -1000.0 < there["return"] < 100.0
    assert there["gradient_steps"] > 0 and there["moved"] > 0.0
    here = json.loads(
        subprocess.run(
            [sys.executable, EPISODE], capture_output=True, text=True, check=True, cwd=ROOT
        ).stdout
    )
    assert there["fallen"] == pytest.approx(here["fallen"], abs=1e-4)


def test_the_doctor_finds_it_well(system: System, figures: list[str]) -> None:
    found = json.loads(system.run("/opt/genkidama/venv/bin/genkidama", "doctor", "--json"))
    figures += [
        f"ARM, {system.release}, doctor: {check['status']} {check['name']}: {check['found']}"
        for check in found["checks"]
    ]
    assert {check["name"] for check in found["checks"] if check["status"] == "ok"} >= {
        "python",
        "system",
        "torch",
        "box2d",
        "uvloop",
    }
    assert found["ok"]
