"""Real Debian systems on one machine, for `make test-deploy`.

Each boots its own systemd, as a Raspberry Pi from a fresh card would. Laws:

- A system is `systemd-nspawn` over an overlay: the image stays as it is. What the system writes
  lies on disk and survives `pull_plug`.
- The network is a bridge in a namespace of its own, the controller's, and it leads nowhere: systems
  reach each other and nothing else.
- Memory is limited from outside, in the cgroup that the whole system runs in. There is no swap.
- All that a fleet makes is named after it (namespaces, cgroups, mounts, machines), and it holds a
  lock as long as it lives. If nobody holds a fleet's lock, its run was killed: the next fleet
  removes what bears its name. Nothing else is touched.
- Clock and kernel are the host's.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, Self

Release = Literal["bullseye", "bookworm", "trixie"]

GIB = 1 << 30

#: Where images and wheels are kept between runs: about 350 MB an image, 2 GB with torch.
CACHE = Path(
    os.environ.get("GENKIDAMA_DEPLOY_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "genkidama/deploy"
)

#: After so many days an image is made anew, with what Debian has mended since.
FRESH_DAYS = 14.0

#: Within these seconds a system has booted or has done as it was told, even where many boot at
#: once.
PATIENCE = 60.0

#: What Raspberry Pi OS Lite has, as far as it matters here. It has no python3-venv: the playbook
#: brings it.
PACKAGES = (
    *(
        "systemd",
        "systemd-sysv",
        "libpam-systemd",
        "dbus",
        "udev",
        "kmod",
        "procps",
        "iproute2",
        "iputils-ping",
        "netbase",
    ),
    *(
        "openssh-server",
        "sudo",
        "python3",
        "python3-apt",
        "avahi-daemon",
        "libnss-mdns",
        "ca-certificates",
        "curl",
        "less",
    ),
)

#: What `apt-get install` finds besides: a fleet cannot reach Debian's mirror, a repository in the
#: image stands in for it.
OFFERED = ("python3-venv", "python3-packaging", "python3-pip", "acl", "rsync")

#: What cannot work in a container, is of no use here, or would run into the middle of a test.
MASKED = (
    *(
        "console-getty.service",
        "getty.target",
        "systemd-firstboot.service",
        "systemd-networkd-wait-online.service",
    ),
    *("systemd-timesyncd.service", "e2scrub_reap.service", "e2scrub_all.timer", "fstrim.timer"),
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer"),
)

_PREFIX = "genkidama-fleet-"
_LOCKS = Path("/run/lock")
_BRIDGE = "fleet"
_COUNTER = itertools.count()


class Failed(Exception):
    """A command that had to succeed did not.

    The text has the command, its exit status and all that it printed.
    """


# What the machine must have.


def requirements() -> str | None:
    """Why this machine cannot boot a fleet, and the way out; None if it can."""
    if os.uname().sysname != "Linux":
        return "Fleets of systems boot on Linux only: use a Linux machine."
    reasons = []
    if os.geteuid():
        reasons.append("Booting systems needs root: run `sudo make test-deploy`.")
    packages = {
        "systemd-nspawn": "systemd-container",
        "mmdebstrap": "mmdebstrap",
        "ip": "iproute2",
        "ssh": "openssh-client",
    }
    missing = [package for command, package in packages.items() if not shutil.which(command)]
    if not Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists():
        missing.append("debian-archive-keyring")
    if missing:
        reasons.append(f"Programs are missing: run `apt-get install {' '.join(missing)}`.")
    hierarchies = _hierarchies()
    if "cgroup2" not in hierarchies.values() or not any(
        (h / "memory.limit_in_bytes").exists() or _offers_memory(h) for h in hierarchies
    ):
        reasons.append(
            "The kernel offers no cgroups with a memory controller: boot it with "
            "`cgroup_enable=memory`, and mount cgroup2."
        )
    if not reasons:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            for name in ("lower", "upper", "work", "merged"):
                (Path(folder) / name).mkdir()
            layers = "lowerdir=lower,upperdir=upper,workdir=work"
            probe = f"mount -t overlay overlay -o {layers} merged && ip link add probe type bridge"
            result = subprocess.run(
                ["unshare", "--mount", "--net", "--pid", "--fork", "sh", "-c", probe],
                cwd=folder,
                capture_output=True,
                text=True,
            )
            if result.returncode:
                said = " ".join((result.stdout + result.stderr).split())
                reasons.append(
                    f"The kernel refuses namespaces, overlays or bridges ({said}): "
                    "use a machine of your own, or a privileged container."
                )
    return " ".join(reasons) or None


def _hierarchies() -> dict[Path, str]:
    """Where cgroups are mounted, and whether as `cgroup` (version 1) or as `cgroup2`."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return {Path(where): kind for _, where, kind, *_ in mounts if kind in ("cgroup", "cgroup2")}


def _offers_memory(hierarchy: Path) -> bool:
    controllers = hierarchy / "cgroup.controllers"
    return controllers.exists() and "memory" in controllers.read_text().split()


# Images.


def kept(name: str, recipe: object, make: Callable[[Path], None], cache: Path = CACHE) -> Path:
    """The folder that `make` fills: made once, then taken from `cache`.

    Its name holds a digest of `recipe`, which is all that it is made from: another recipe makes
    another folder. It is made anew after `FRESH_DAYS`, and deleted when it is twice as old.
    """
    cache.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(repr(recipe).encode()).hexdigest()[:8]
    folder = cache / f"{name}-{digest}"
    unfinished = cache / f"{folder.name}.unfinished"
    made = cache / f"{folder.name}.made"
    with _locked(cache / f"{folder.name}.lock"):
        if not folder.exists() or _days_since(made) > FRESH_DAYS:
            for stale in (unfinished, folder):
                _delete(stale)
            make(unfinished)
            unfinished.rename(folder)
            made.touch()
    for stamp in cache.glob("*.made"):
        if _days_since(stamp) > 2 * FRESH_DAYS:
            _delete(stamp.with_suffix(""))
            stamp.unlink(missing_ok=True)
    return folder


def _days_since(stamp: Path) -> float:
    """How old a file is; infinitely old if there is none."""
    return (time.time() - stamp.stat().st_mtime) / 86400 if stamp.exists() else math.inf


def base_image(release: Release, cache: Path = CACHE, packages: Sequence[str] = ()) -> Path:
    """A folder with a Debian `release` as it is on a fresh card, plus `packages`, from `cache`.

    Building it takes a minute or two and needs Debian's mirror, which is taken from the host's own
    sources if the host is a Debian.
    """

    def make(unfinished: Path) -> None:
        hook = unfinished.with_suffix(".hook")
        hook.write_text(_HOOK)
        include = ",".join((*PACKAGES, *packages))
        customize = f'sh -eux "{hook}" "$1" "{" ".join(OFFERED)}" "{" ".join(MASKED)}"'
        options = ["--variant=minbase", f"--include={include}", f"--customize-hook={customize}"]
        options += ["--dpkgopt=path-exclude=/usr/share/man/*"]
        bootstrap(unfinished, release, *options, sources=_host_sources(release))
        _write_index(unfinished / "srv/debian")
        hook.unlink()

    recipe = (release, PACKAGES, tuple(packages), OFFERED, MASKED, _HOOK)
    return kept("+".join((release, *packages)), recipe, make, cache)


def bootstrap(folder: Path, release: str, *options: str, sources: str = "") -> None:
    """Installs a Debian `release` into `folder`, from `sources` as apt reads them.

    In a mount namespace of its own, or a build that is killed would leave its mounts.
    """
    command = ["unshare", "--mount", "mmdebstrap", *options, release, str(folder)]
    _call([*command, *(["-"] if sources else [])], input=sources)


def _host_sources(release: Release) -> str:
    """The host's sources of Debian for `release`; empty where the host is no Debian.

    For another release the suite is replaced. Debian's keyring has the next release's keys early.
    """
    system = dict(
        line.split("=", 1)
        for line in Path("/etc/os-release").read_text().splitlines()
        if "=" in line
    )
    if system.get("ID") != "debian":
        return ""
    codename = system["VERSION_CODENAME"]
    suites = {f"{codename}{kind}": f"{release}{kind}" for kind in ("", "-updates", "-security")}
    fields = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)"
    lines = [
        line.split(" ", 3)
        for line in _call(
            ["apt-get", "indextargets", "--format", fields, "Created-By: Packages"]
        ).splitlines()
    ]
    # The origin is unknown, and stays as it was asked for, before the first `apt-get update`.
    ours = [
        (uri, suites[suite])
        for uri, suite, component, origin in lines
        if suite in suites and component == "main" and origin in ("Debian", "$(ORIGIN)")
    ]
    return "".join(f"deb {uri} {suite} main\n" for uri, suite in dict.fromkeys(ours))


#: Makes an image of what mmdebstrap has installed. Arguments: image, packages to offer, units to
#: mask.
_HOOK = r"""
image=$1; offered=$2; masked=$3
chroot "$image" useradd --create-home --shell /bin/bash --uid 1000 --groups sudo,users pi
echo 'pi ALL=(ALL) NOPASSWD: ALL' > "$image/etc/sudoers.d/010_pi-nopasswd"
install -d -m 700 -o 1000 -g 1000 "$image/home/pi/.ssh"
rm -f "$image"/etc/ssh/ssh_host_* "$image/etc/machine-id" "$image/var/lib/dbus/machine-id"
for unit in $masked; do ln -sf /dev/null "$image/etc/systemd/system/$unit"; done
install -d "$image/var/log/journal" "$image/srv/debian"
export APT_CONFIG=$MMDEBSTRAP_APT_CONFIG
apt-get --yes --no-install-recommends --download-only \
    -o Dir::Cache::archives="$image/srv/debian" install $offered
rm -rf "$image/srv/debian/partial" "$image/srv/debian/lock" "$image"/etc/apt/sources.list.d/*
echo 'deb [trusted=yes] file:/srv/debian ./' > "$image/etc/apt/sources.list"
echo 'Acquire::Languages "none";' > "$image/etc/apt/apt.conf.d/90offline"
echo 'LANG=C.UTF-8' > "$image/etc/default/locale"
# Else the first boot catches up on what the packages have done.
touch "$image/etc/.updated" "$image/var/.updated"
"""


def _write_index(repository: Path) -> None:
    """Makes a folder of packages one that apt accepts as a source."""
    entries = []
    for package in sorted(repository.glob("*.deb")):
        control = _call(["dpkg-deb", "--field", str(package)]).strip()
        digest = hashlib.sha256(package.read_bytes()).hexdigest()
        entries.append(
            f"{control}\nFilename: ./{package.name}\n"
            f"Size: {package.stat().st_size}\nSHA256: {digest}\n"
        )
    (repository / "Packages").write_text("\n".join(entries))


# Fleets.


@dataclass(frozen=True)
class Memory:
    """What a system has taken of its memory since it booted; in bytes."""

    #: What it has now, less the cache of files, which the kernel gives back on demand.
    used: int
    #: The most it had, with the cache of files; at most its limit.
    peak: int
    #: How often its limit was met: cached files were dropped then.
    failures: int
    #: How many processes were killed because the limit was met and nothing could be dropped.
    killed: int


class Fleet:
    """Debian systems that run while the context is open.

        with Fleet(folder, base_image("bookworm"), {"pi1": "10.77.0.11"}) as fleet:
            fleet.ssh("pi1", "hostname")

    `systems` maps names to addresses in one /24 network, of which the controller has `.1`. `memory`
    limits each system, in bytes. `work_dir` is the fleet's own and lies on a disk; consoles' logs
    stay there, the systems' disks go. `ssh_config` and `inventory` are files for `ssh -F` and
    `ansible -i`.
    """

    def __init__(
        self, work_dir: Path, base: Path, systems: Mapping[str, str], memory: int = GIB
    ) -> None:
        self.systems = dict(systems)
        self.work_dir = work_dir.resolve()
        self.base = base.resolve()
        self.memory_limit = memory
        self.name = f"{_PREFIX}{os.getpid()}-{next(_COUNTER)}"
        self.ssh_config = self.work_dir / "ssh_config"
        self.inventory = self.work_dir / "inventory.ini"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        self.work_dir.mkdir(parents=True, exist_ok=True)
        with _locked(_LOCKS / "genkidama-fleets"):
            for file in _LOCKS.glob(f"{_PREFIX}*"):
                with suppress(BlockingIOError), _take_lock(file):
                    _remove(file.name)
            self._lock = _take_lock(_LOCKS / self.name)
        try:
            self._lay_network()
            self._write_ssh_config()
            for system in self.systems:
                self._lay_disk(system)
            self.boot(*self.systems)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all that runs and leaves nothing but logs."""
        if self._lock is None:
            return
        _remove(self.name)
        for process in self._running.values():
            process.wait()
        self._running.clear()
        self._lock.close()
        self._lock = None

    # What a test does with it

    def root(self, system: str) -> Path:
        """The file tree of `system`; what is written there is there inside at once."""
        return self.work_dir / system / "root"

    def run(
        self,
        command: Sequence[str],
        *,
        cwd: Path | None = None,
        check: bool = True,
        seconds: float = 600.0,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        """Runs `command` as the controller, in the fleet's network.

        Raises:
            Failed: it fails, and `check` is set; or it still runs after `seconds`.
        """
        env = {**os.environ, "ANSIBLE_INVENTORY": str(self.inventory), **environment}
        in_network = ["ip", "netns", "exec", self._controller, *command]
        try:
            result = subprocess.run(
                in_network,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired as error:
            said = b"".join(
                stream for stream in (error.stdout, error.stderr) if isinstance(stream, bytes)
            ).decode(errors="replace")
            raise Failed(
                f"{shlex.join(command)}: still running after {seconds:g} s\n{said}"
            ) from None
        if check and result.returncode:
            raise Failed(
                f"{shlex.join(command)}: exit status {result.returncode}\n"
                f"{result.stdout}{result.stderr}"
            )
        return result

    def ssh(self, system: str, command: str, *, check: bool = True, seconds: float = 600.0) -> str:
        """What a line of shell prints on `system`, run by user `pi`; `sudo` asks for nothing."""
        return self.run(
            ["ssh", "-F", str(self.ssh_config), system, command], check=check, seconds=seconds
        ).stdout

    def pull_plug(self, *systems: str) -> None:
        """Ends `systems` as a power cut would: at once, and without a last word to anybody.

        Other than with a power cut, what was written and not yet synced to the disk is kept.
        """
        for system in systems:
            # The kernel still closes a killed process's connections: the cable goes first, and
            # nobody may notice that.
            _freeze(f"{self.name}/{system}")
            _call(["ip", "-n", self._controller, "link", "del", system])
            _kill(f"{self.name}/{system}")
            self._running.pop(system).wait()
            _call(["ip", "netns", "del", self._namespace(system)])

    def boot(self, *systems: str) -> None:
        """Starts `systems`, each with the disk that it had, and waits until they answer."""
        for system in systems:
            self._start(system)
        for system in systems:
            self._await(system)

    def reboot(self, system: str) -> None:
        """Reboots `system` in an orderly way, as `sudo reboot` does, and waits until it answers."""
        before = self.ssh(system, _BOOT_ID)
        self.ssh(system, "sudo systemctl reboot", check=False)
        self._await(system, other_than=before)

    def cut(self, system: str) -> None:
        """Pulls the network cable of `system`, which goes on running."""
        _call(["ip", "-n", self._controller, "link", "set", system, "down"])

    def join(self, system: str) -> None:
        """Puts the network cable back."""
        _call(["ip", "-n", self._controller, "link", "set", system, "up"])

    def memory(self, system: str) -> Memory:
        """What `system` takes of its memory."""
        group = _memory_hierarchy() / self.name / system
        stat = _pairs(group / "memory.stat")
        if (group / "memory.current").exists():
            used, peak = (
                int((group / name).read_text()) for name in ("memory.current", "memory.peak")
            )
            cache = stat["active_file"] + stat["inactive_file"]
            events = _pairs(group / "memory.events")
            return Memory(used - cache, peak, events["max"], events["oom_kill"])
        names = ("memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.failcnt")
        used, peak, failures = (int((group / name).read_text()) for name in names)
        cache = stat["total_active_file"] + stat["total_inactive_file"]
        killed = sum(_pairs(file)["oom_kill"] for file in group.rglob("memory.oom_control"))
        return Memory(used - cache, peak, failures, killed)

    # How it is made

    @property
    def _controller(self) -> str:
        return f"{self.name}-controller"

    def _namespace(self, system: str) -> str:
        return f"{self.name}-{system}"

    def _lay_network(self) -> None:
        gateway = next(iter(self.systems.values())).rpartition(".")[0] + ".1"
        _call(["ip", "netns", "add", self._controller])
        ip = ["ip", "-n", self._controller]
        _call([*ip, "link", "set", "lo", "up"])
        # Without snooping, which would keep multicast (mDNS) from those that have not asked yet.
        _call([*ip, "link", "add", _BRIDGE, "type", "bridge", "mcast_snooping", "0"])
        _call([*ip, "address", "add", f"{gateway}/24", "dev", _BRIDGE])
        _call([*ip, "link", "set", _BRIDGE, "up"])

    def _plug(self, system: str) -> None:
        """A network namespace for `system`, and a cable from there to the bridge."""
        address, namespace = self.systems[system], self._namespace(system)
        # The same after every boot.
        mac = "02:00:" + ":".join(f"{int(number):02x}" for number in address.split("."))
        _call(["ip", "netns", "add", namespace])
        _call(
            [
                "ip",
                "link",
                "add",
                system,
                "netns",
                self._controller,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "address",
                mac,
                "netns",
                namespace,
            ]
        )
        _call(["ip", "-n", self._controller, "link", "set", system, "master", _BRIDGE, "up"])
        _call(["ip", "-n", namespace, "link", "set", "lo", "up"])
        _call(["ip", "-n", namespace, "address", "add", f"{address}/24", "brd", "+", "dev", "eth0"])
        _call(["ip", "-n", namespace, "link", "set", "eth0", "up"])

    def _write_ssh_config(self) -> None:
        key = self.work_dir / "id_ed25519"
        if not key.exists():
            _call(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "controller", "-f", str(key)]
            )
        hosts = "".join(
            f"Host {system}\nHostName {address}\nHostKeyAlias {system}\n"
            for system, address in self.systems.items()
        )
        common = f"User pi\nIdentityFile {key}\nIdentitiesOnly yes\n"
        common += f"UserKnownHostsFile {self.work_dir}/known_hosts\n"
        common += "BatchMode yes\nConnectTimeout 5\nServerAliveInterval 5\nServerAliveCountMax 6\n"
        self.ssh_config.write_text(f"{hosts}Host *\n{common}")
        lines = [
            f"{system} ansible_ssh_common_args='-F {self.ssh_config}'" for system in self.systems
        ]
        self.inventory.write_text("\n".join(lines) + "\n")
        (self.work_dir / "known_hosts").write_text("")

    def _lay_disk(self, system: str) -> None:
        """The file tree of `system`: the image, and over it what one card has and no other."""
        folder = self.work_dir / system
        _delete(folder)  # a power cut of this machine may have left it
        for name in ("upper", "work", "root"):
            (folder / name).mkdir(parents=True)
        layers = f"lowerdir={self.base},upperdir={folder}/upper,workdir={folder}/work"
        _call(
            ["mount", "-t", "overlay", self._namespace(system), "-o", layers, str(folder / "root")]
        )
        etc = folder / "root/etc"
        (etc / "hostname").write_text(f"{system}\n")
        (etc / "hosts").write_text(f"127.0.0.1\tlocalhost\n127.0.1.1\t{system}\n")
        (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
        _call(
            [
                "ssh-keygen",
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-C",
                system,
                "-f",
                str(etc / "ssh/ssh_host_ed25519_key"),
            ]
        )
        with (self.work_dir / "known_hosts").open("a") as known:
            known.write(f"{system} {(etc / 'ssh/ssh_host_ed25519_key.pub').read_text()}")
        keys = folder / "root/home/pi/.ssh/authorized_keys"
        keys.write_text((self.work_dir / "id_ed25519.pub").read_text())
        os.chown(keys, 1000, 1000)

    def _start(self, system: str) -> None:
        self._plug(system)
        groups = [
            _make_cgroup(hierarchy, kind, f"{self.name}/{system}")
            for hierarchy, kind in _hierarchies().items()
        ]
        _limit_memory(_memory_hierarchy() / self.name / system, self.memory_limit)
        nspawn = [
            "systemd-nspawn",
            "--quiet",
            "--boot",
            "--register=no",
            "--keep-unit",
            "--resolv-conf=off",
            "--console=pipe",
        ]
        nspawn += [
            f"--directory={self.root(system)}",
            f"--machine={self._namespace(system)}",
            f"--hostname={system}",
        ]
        nspawn += [f"--network-namespace-path=/run/netns/{self._namespace(system)}"]
        # Enter the cgroups, which the first arguments name, and boot. 133 means that the system
        # reboots.
        enter = 'n=$1; shift; for _ in $(seq $n); do echo $$ > "$1/cgroup.procs"; shift; done'
        script = f'{enter}; while "$@"; [ $? = 133 ]; do :; done'
        command = ["sh", "-c", script, "sh", str(len(groups)), *map(str, groups), *nspawn]
        # systemd 256 and later refuse cgroups of version 1, and systems in the field see version 2
        # only.
        env = {**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1", "SYSTEMD_NSPAWN_LOCK": "0"}
        with (self.work_dir / f"{system}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        self._running[system] = process

    def _await(self, system: str, other_than: str = "") -> None:
        """Waits until user `pi` can log in; `other_than` is the boot that is not meant."""
        deadline = time.monotonic() + PATIENCE
        while self.ssh(system, _BOOT_ID, check=False) in ("", other_than):
            ended = self._running[system].poll() is not None
            if ended or time.monotonic() > deadline:
                log = (self.work_dir / f"{system}.log").read_text(errors="replace")
                raise Failed(
                    f"{system} {'ended' if ended else f'does not answer within {PATIENCE:g} s'}; "
                    f"its console:\n{log[-5000:]}"
                )
            time.sleep(0.1)


_BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


# Cgroups.


def _memory_hierarchy() -> Path:
    """The mounted hierarchy of cgroups that limits memory, of either version."""
    return next(
        h for h in _hierarchies() if (h / "memory.limit_in_bytes").exists() or _offers_memory(h)
    )


def _make_cgroup(hierarchy: Path, kind: str, name: str) -> Path:
    group = hierarchy
    for part in name.split("/"):
        above, group = group, group / part
        if kind == "cgroup2" and _offers_memory(above):
            (above / "cgroup.subtree_control").write_text("+memory")
        group.mkdir(exist_ok=True)
        if kind == "cgroup" and (group / "cpuset.cpus").exists():
            for file in ("cpuset.cpus", "cpuset.mems"):
                (group / file).write_text((above / file).read_text())
    return group


def _limit_memory(group: Path, limit: int) -> None:
    """Limits `group` to `limit` bytes, without swap."""
    if (group / "memory.max").exists():
        (group / "memory.max").write_text(str(limit))
        if (group / "memory.swap.max").exists():
            (group / "memory.swap.max").write_text("0")
    else:
        (group / "memory.limit_in_bytes").write_text(str(limit))
        (group / "memory.swappiness").write_text("0")


def _freeze(name: str) -> None:
    """Stops all processes of a cgroup and those below it, and waits until they stand still."""
    _tell_group(name, "cgroup.freeze", "frozen", 1)


def _kill(name: str) -> None:
    """Kills all processes in and below a cgroup, waits until they are gone, and removes the cgroup.

    It cannot be used again: Linux kills at once what is later started in a cgroup that was killed
    before.
    """
    _tell_group(name, "cgroup.kill", "populated", 0)
    for hierarchy in _hierarchies():
        for group, *_ in os.walk(hierarchy / name, topdown=False):
            os.rmdir(group)


def _tell_group(name: str, file: str, event: str, awaited: int) -> None:
    """Writes 1 to a file of the cgroup `name`, if there is one, and waits for what comes of it."""
    for hierarchy, kind in _hierarchies().items():
        group = hierarchy / name
        if kind == "cgroup2" and group.exists():
            (group / file).write_text("1")
            deadline = time.monotonic() + PATIENCE
            while _pairs(group / "cgroup.events")[event] != awaited:
                if time.monotonic() > deadline:
                    raise Failed(f"{group / file}: no effect within {PATIENCE:g} s")
                time.sleep(0.01)


def _pairs(file: Path) -> dict[str, int]:
    return {
        name: int(value) for name, value in (line.split() for line in file.read_text().splitlines())
    }


# Names, locks and leftovers.


def _remove(fleet: str) -> None:
    """Ends and removes all that bears the name `fleet`, and the lock file last."""
    _kill(fleet)
    namespaces = [file.name for file in Path("/run/netns").glob(f"{fleet}-*")]
    for namespace in namespaces:
        for pid in _call(["ip", "netns", "pids", namespace]).split():  # what the controller ran
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        source, where, *_ = line.split()
        if source.startswith(f"{fleet}-"):
            root = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), where))
            _call(["umount", str(root)])
            _delete(root.parent)
    for namespace in namespaces:
        _call(["ip", "netns", "del", namespace])
    for folder in Path("/run/systemd/nspawn").glob(f"*/{fleet}-*"):
        _delete(folder)
    (_LOCKS / fleet).unlink(missing_ok=True)


def _take_lock(file: Path) -> IO[str]:
    """The open file, locked; BlockingIOError if somebody holds it."""
    opened = file.open("w")
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        opened.close()
        raise
    return opened


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Holds a lock, which is waited for."""
    with file.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def _delete(folder: Path) -> None:
    """Deletes `folder`, and nothing that is mounted below it."""
    _call(["rm", "-rf", "--one-file-system", str(folder)])


def _call(command: Sequence[str], input: str = "") -> str:
    """What `command` prints; Failed if it fails."""
    result = subprocess.run(command, input=input, capture_output=True, text=True)
    if result.returncode:
        raise Failed(
            f"{shlex.join(command)}: exit status {result.returncode}\n"
            f"{result.stdout[-5000:]}{result.stderr[-5000:]}"
        )
    return result.stdout
