"""Makes a wheelhouse: a folder with all that machines of one kind install.

So no such machine needs the network, a compiler or pip.

    python3 deploy/wheelhouse.py --out wheels --role child --platform aarch64 --python 3.11

makes `wheels/child-aarch64-py311/`. It holds Genkidama, built from this checkout; what the role's
requirements.txt pins; pip itself; and `wheelhouse.sha256`, a line `HASH  FILE` for each wheel. The
digest of that file is the digest of the whole.

Laws:
- It needs Python 3.11 with venv, and PyPI for what is not there yet. Its tools go into `.tools`, in
  the versions of constraints.txt.
- It keeps what is there and right. A second run asks nobody, changes no byte, and its last line
  begins with "unchanged".
- The same sources give the same bytes.
- It writes `wheelhouse.sha256` last, in one step. Where a run was interrupted, the folder does not
  agree with that file; the next run mends the folder.
- Before it downloads anything, it knows that the pins hold all that they need in turn.
- Box2D has no wheel for 64-bit ARM Linux. zig compiles it here, for the stable ABI: one wheel
  serves Python 3.11 and all later ones.
- Standard output says what has changed, standard error what goes on. An error is one line.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MANIFEST = "wheelhouse.sha256"

#: Wheels may need a glibc up to this one: Debian 12's.
GLIBC_MINOR = 36

#: Box2D is linked against Debian 10's glibc.
BOX2D_GLIBC_MINOR = 28
BOX2D_SOURCE = {"2.3.8": "bdacfbbc56079bb317548efe49d3d5a86646885cc27f4a2ee97e4b2960921ab7"}

#: All that Genkidama's wheel is made of.
SOURCES = ("genkidama", "examples", "pyproject.toml", "README.md", "LICENSE")


class Failure(Exception):
    """The wheelhouse cannot be made. The text is one line.

    `status` is 2 if a setting is wrong and 1 if this machine lacks something.
    """

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Target:
    """The machines that a wheelhouse is for."""

    role: str
    platform: str
    python: str
    #: Whether their experiments need tensors.
    torch: bool = False

    @property
    def folder(self) -> str:
        plain = f"{self.role}-{self.platform}-py{self.python.replace('.', '')}"
        return f"{plain}-with-torch" if self.torch else plain

    @property
    def requirements(self) -> str:
        """The text of its requirements files."""
        names = ["requirements.txt", *["requirements-torch.txt"] * self.torch]
        return "".join((ROOT / self.role / name).read_text(encoding="utf-8") for name in names)

    @property
    def environment(self) -> dict[str, str]:
        """The values for markers; pip would take those of the running interpreter."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.platform,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
            "extra": "",
        }

    @property
    def platforms(self) -> list[str]:
        """Platform tags, best first."""
        return [f"manylinux_2_{minor}_{self.platform}" for minor in range(GLIBC_MINOR, 16, -1)] + [
            f"manylinux2014_{self.platform}"
        ]

    @property
    def for_pip(self) -> list[str]:
        flags = ["--only-binary=:all:", "--no-deps", "--implementation=cp"]
        flags += [f"--platform={platform}" for platform in self.platforms]
        return [*flags, f"--python-version={self.python}"]


@dataclass(frozen=True)
class Pin:
    """One line of a requirements.txt that holds for the target."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


Pins = dict[str, Pin]


class Tools:
    """A virtual environment with the packages that this program works with."""

    def __init__(self, folder: Path, pip_flags: list[str]) -> None:
        self.folder = folder
        self.pip_flags = pip_flags
        self.pins = {pin.name: pin for pin in read_constraints()}

    def install(self, *names: str) -> None:
        """Installs what is missing.

        Raises:
            Failure: no venv, or pip's error.
        """
        installed = self.folder / "installed"
        wanted = {str(self.pins[name]) for name in names}
        # A virtual environment cannot be moved, so its place is part of it.
        python = f"python {sys.version_info.major}.{sys.version_info.minor}, {self.folder}"
        have = (
            set(installed.read_text(encoding="utf-8").splitlines()) if installed.exists() else set()
        )
        if python not in have or not (self.folder / "bin/python").exists():
            say("making a virtual environment for the tools")
            if subprocess.run(
                [sys.executable, "-m", "venv", "--clear", self.folder], capture_output=True
            ).returncode:
                raise Failure(
                    f"{sys.executable} -m venv fails; "
                    "on Debian and Ubuntu: apt install python3-venv"
                )
            have = {python}
        if not wanted <= have:
            say(f"installing {', '.join(sorted(wanted - have))}")
            self.pip(
                "install", "--quiet", "--constraint", ROOT / "constraints.txt", *sorted(wanted)
            )
            installed.write_text("\n".join(sorted(have | wanted)) + "\n", encoding="utf-8")

    @property
    def packages(self) -> str:
        return sysconfig.get_path(
            "purelib", "venv", {"base": str(self.folder), "platbase": str(self.folder)}
        )

    def run(
        self, *command: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> str:
        """What a command writes to standard output.

        Raises:
            Failure: it fails. The text is its last line that tells of an error.
        """
        environment = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            **(env or {}),
        }
        done = subprocess.run(
            [self.folder / "bin" / command[0], *command[1:]],
            capture_output=True,
            text=True,
            env=environment,
            cwd=cwd,
        )
        if done.returncode:
            lines = [
                line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()
            ]
            errors = (
                [line for line in lines if re.search("error", line, re.IGNORECASE)]
                or lines
                or [f"status {done.returncode}"]
            )
            raise Failure(f"{' '.join(str(word) for word in command[:4])} …: {errors[-1]}")
        return done.stdout

    def pip(
        self, command: str, *arguments: str | Path, env: Mapping[str, str] | None = None
    ) -> str:
        flags = ["--disable-pip-version-check", "--no-input"]
        return self.run(
            "python", "-m", "pip", *flags, command, *self.pip_flags, *arguments, env=env
        )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_constraints() -> Iterator[Pin]:
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, version = re.split(r"==|[ ;]", line)[:2]
            yield Pin(canonical(name), version)


def read_pins(text: str, target: Target) -> Pins:
    """The pins of a requirements.txt that hold for the target."""
    from packaging.requirements import Requirement

    pins: Pins = {}
    for line in text.splitlines():
        requirement = line.partition("#")[0]
        if not requirement.strip():
            continue
        wanted = Requirement(requirement)
        if wanted.marker is None or wanted.marker.evaluate(target.environment):
            name = canonical(wanted.name)
            pins[name] = Pin(name, str(wanted.specifier).removeprefix("=="))
    return pins


def hash_of(path: Path) -> str:
    """A file's SHA-256; empty if there is no such file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return ""


def fitting(wheel: Path, target: Target) -> Path:
    """A wheel of the user's own.

    Raises:
        Failure: it is no wheel, or no wheel for the target.
    """
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        name, version, _, _ = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename:
        fits = False
    else:
        fits = wheel.is_file() and is_for(wheel.name, Pin(name, str(version)), target)
    if not fits:
        raise Failure(
            f"--also {wheel}: not a wheel for {target.platform} and Python {target.python}; "
            "`pip wheel --no-deps DIR` makes one",
            2,
        )
    return wheel


def is_for(wheel: str, pin: Pin, target: Target) -> bool:
    """Whether a file of that name is the pinned version, and fits the target."""
    from packaging.specifiers import SpecifierSet
    from packaging.tags import compatible_tags, cpython_tags
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        name, version, _, tags = parse_wheel_filename(wheel)
    except InvalidWheelFilename:
        return False
    python = tuple(int(number) for number in target.python.split("."))
    # A wheel that was built on such a machine says `linux`.
    platforms = [
        *target.platforms,
        *(f"{older}_{target.platform}" for older in ("manylinux2010", "manylinux1", "linux")),
    ]
    fitting = {
        *cpython_tags(python, platforms=platforms),
        *compatible_tags(python, f"cp{python[0]}{python[1]}", platforms),
    }
    return (
        name == pin.name
        and SpecifierSet(f"=={pin.version}").contains(version, prereleases=True)
        and not fitting.isdisjoint(tags)
    )


def read_manifest(folder: Path) -> dict[str, str]:
    """The hash of each file."""
    try:
        lines = (folder / MANIFEST).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def make_wheelhouse(
    out: Path,
    target: Target,
    pip_flags: list[str],
    also: Iterable[Path] = (),
) -> tuple[list[str], list[str]]:
    """Makes `out/target.folder`, or mends it.

    Args:
        also: wheels of the user's own, for instance of an environment.

    Returns:
        The files that it has added or changed, and the files that it has removed.

    Raises:
        Failure: the machine or the settings lack something.
    """
    tools = Tools(out / ".tools", pip_flags)
    tools.install("pip", "packaging", "hatchling")
    if tools.packages not in sys.path:
        sys.path.insert(0, tools.packages)

    pins = read_pins(target.requirements, target)
    pins["pip"] = tools.pins["pip"]
    pinned = set(pins)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=out) as name:
        new = Path(name)
        own = [genkidama_wheel(tools, out / ".built")]
        if box2d := pins.pop("box2d-py", None):
            own.append(compile_box2d(tools, out / ".built", box2d, target))
        for wheel in (*own, *(fitting(wheel, target) for wheel in also)):
            shutil.copyfile(wheel, new / wheel.name)
        kept = {
            name: digest
            for name, digest in read_manifest(out / target.folder).items()
            if any(is_for(name, pin, target) for pin in pins.values())
            and hash_of(out / target.folder / name) == digest
        }
        missing = [
            pin for pin in pins.values() if not any(is_for(name, pin, target) for name in kept)
        ]
        if missing:
            check_complete(resolve(tools, missing, target), pinned, target)
            say(f"downloading {len(missing)} wheels for {target.folder}")
            tools.pip("download", "--quiet", "--dest", new, *target.for_pip, *map(str, missing))
        return put_in_place(new, kept, out / target.folder)


def put_in_place(new: Path, kept: dict[str, str], folder: Path) -> tuple[list[str], list[str]]:
    """Gives `folder` the wheels of `new` and the kept ones, and no others.

    Args:
        kept: the hash of each kept file.

    Returns:
        The files that it has added or changed, and the files that it has removed.
    """
    made = {path.name: hash_of(path) for path in new.iterdir()}
    digests = dict(sorted({**kept, **made}.items()))
    folder.mkdir(exist_ok=True)
    changed = sorted(name for name, digest in made.items() if hash_of(folder / name) != digest)
    for name in changed:
        (new / name).chmod(0o644)
        (new / name).replace(folder / name)
    if digests != read_manifest(folder):
        (new / MANIFEST).write_text(
            "".join(f"{digest}  {name}\n" for name, digest in digests.items()), encoding="utf-8"
        )
        (new / MANIFEST).replace(folder / MANIFEST)
    stale = sorted(path.name for path in folder.iterdir() if path.name not in {*digests, MANIFEST})
    for name in stale:
        (folder / name).unlink()
    return changed, stale


def resolve(tools: Tools, pins: Iterable[Pin], target: Target) -> list[dict[str, Any]]:
    """The metadata of the packages that pip would download."""
    with tempfile.TemporaryDirectory() as nowhere:
        flags = ["--quiet", "--dry-run", "--ignore-installed", f"--target={nowhere}", "--report=-"]
        report = json.loads(tools.pip("install", *flags, *target.for_pip, *map(str, pins)))
    return [item["metadata"] for item in report["install"]]


def check_complete(metadata: Iterable[dict[str, Any]], pinned: set[str], target: Target) -> None:
    """Checks that the packages to download need nothing that would be missing.

    Raises:
        Failure: one does. On x86-64 that is mostly a torch with CUDA.
    """
    from packaging.requirements import Requirement

    for package in metadata:
        needed = [Requirement(text) for text in package.get("requires_dist", [])]
        needed = [
            need
            for need in needed
            if need.marker is None or need.marker.evaluate(target.environment)
        ]
        missing = [name for need in needed if (name := canonical(need.name)) not in pinned]
        what = f"{package['name']} {package['version']} for {target.platform} "
        what += f"and Python {target.python}"
        if missing and package["name"] == "torch":
            raise Failure(
                f"{what} is a build with CUDA ({missing[0]}, …), some gigabytes; name an index "
                "that has torch without CUDA: --pip-flags='--extra-index-url URL'",
                2,
            )
        if missing:
            raise Failure(
                f"{what} needs {', '.join(missing)}: pin it in {target.role}/requirements.txt", 2
            )


def genkidama_wheel(tools: Tools, built: Path) -> Path:
    """Genkidama's own wheel, built anew only if its sources have changed."""
    digest = hashlib.sha256(str(tools.pins["hatchling"]).encode())
    sources = [
        path
        for name in SOURCES
        for path in ([ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*")))
    ]
    for path in sources:
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(ROOT)} {hash_of(path)}\n".encode())
    folder = built / f"genkidama-{digest.hexdigest()[:16]}"
    if not folder.exists():
        say("building Genkidama's wheel")
        with tempfile.TemporaryDirectory() as name:
            # This replaces the caller's epoch: the same sources give the same bytes.
            flags = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir"]
            tools.pip("wheel", *flags, name, ROOT, env={"SOURCE_DATE_EPOCH": "1580601600"})
            for old in built.glob("genkidama-*"):
                shutil.rmtree(old)
            put(folder, *Path(name).iterdir())
    return next(folder.iterdir())


def put(folder: Path, *files: Path) -> None:
    """Makes a folder with all of these files, in one step."""
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        whole = Path(name) / "whole"
        whole.mkdir()
        for file in files:
            shutil.copyfile(file, whole / file.name)
        whole.rename(folder)


def compile_box2d(tools: Tools, built: Path, pin: Pin, target: Target) -> Path:
    """A wheel of Box2D for Linux on the target's processor, which this machine need not have.

    Only its Python headers come from this machine. For the stable ABI they are the same on all
    64-bit systems.
    """
    zig_version = tools.pins["ziglang"].version
    swig_version = tools.pins["swig"].version
    folder = (
        built / f"{pin.name}-{pin.version}-{target.platform}-zig{zig_version}-swig{swig_version}"
    )
    if not folder.exists():
        headers = python_headers()
        tools.install("pip", "packaging", "hatchling", "setuptools", "swig", "ziglang")
        say(f"compiling Box2D for {target.platform}, which takes a minute or two")
        with tempfile.TemporaryDirectory() as name:
            source = box2d_source(tools, pin, Path(name))
            shutil.copytree(headers, source / "python")
            # Debian's own pyconfig.h would look for the target's.
            shutil.copyfile(sysconfig.get_config_h_filename(), source / "python/pyconfig.h")
            # setup.py's options, less -O: its -fastproxy goes beyond the stable ABI.
            swig = "-python -c++ -IBox2D -small -fastdispatch -fvirtual -includeall -ignoremissing"
            swig += " -w201,302,312,506,509,511 -globals b2Globals -outdir library/Box2D -keyword"
            swig += " -D_SWIG_KWARGS -o wrap.cpp Box2D/Box2D.i"
            tools.run("swig", *swig.split(), cwd=source)
            zig = f"-target {target.platform}-linux-gnu.2.{BOX2D_GLIBC_MINOR} -shared -fPIC -O3 -g0"
            # Multiply and add round separately, as on x86-64.
            zig += " -w -Wl,-s -fno-sanitize=all -ffp-contract=off -DPy_LIMITED_API=0x030b0000"
            zig += " -I. -Ipython -o library/Box2D/_Box2D.abi3.so wrap.cpp"
            units = sorted(
                str(path.relative_to(source)) for path in (source / "Box2D").rglob("*.cpp")
            )
            cache = {"ZIG_GLOBAL_CACHE_DIR": f"{name}/zig", "ZIG_LOCAL_CACHE_DIR": f"{name}/zig"}
            words = ("python", "-m", "ziglang", "c++", *zig.split(), *units)
            tools.run(*words, cwd=source, env=cache)
            tag = f"cp311-abi3-manylinux_2_{BOX2D_GLIBC_MINOR}_{target.platform}"
            put(folder, pack_box2d(source, pin, tag))
    return next(folder.iterdir())


def python_headers() -> Path:
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists() or not Path(sysconfig.get_config_h_filename()).exists():
        raise Failure(
            f"{headers}/Python.h: not there, and Box2D is compiled here for 64-bit ARM; "
            "apt install python3-dev (Debian, Ubuntu) or dnf install python3-devel (Fedora)"
        )
    return headers


def box2d_source(tools: Tools, pin: Pin, folder: Path) -> Path:
    """Downloads and unpacks Box2D's source."""
    flags = f"--quiet --no-deps --no-build-isolation --no-binary {pin.name} {pin}".split()
    tools.pip("download", *flags, "--dest", folder)
    (archive,) = folder.glob("*.tar.gz")
    if hash_of(archive) != BOX2D_SOURCE.get(pin.version):
        raise Failure(
            f"{archive.name}: sha256 {hash_of(archive)} is not the one "
            f"that {Path(__file__).name} knows"
        )
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def pack_box2d(source: Path, pin: Pin, tag: str) -> Path:
    about = f"{pin.name.replace('-', '_')}-{pin.version}.dist-info"
    library = source / "library"
    contents = {
        path.relative_to(library).as_posix(): path.read_bytes()
        for path in library.rglob("Box2D/**/*")
        if path.suffix in (".py", ".so")
    }
    contents[f"{about}/METADATA"] = (source / "PKG-INFO").read_bytes()
    contents[f"{about}/licenses/LICENSE"] = (source / "LICENSE").read_bytes()
    contents[f"{about}/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: genkidama wheelhouse\n"
        f"Root-Is-Purelib: false\nTag: {tag}\n".encode()
    )
    record = ""
    for name, content in sorted(contents.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    contents[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
    wheel = source / f"{about.removesuffix('.dist-info')}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in sorted(contents.items()):
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            packed.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return wheel


@contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Waits until no other run works in this folder."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in out.glob(".new-*"):
            shutil.rmtree(left)
        yield


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Make a folder with all wheels that machines of one kind install."
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="where wheelhouses are made")
    add("--role", choices=["parent", "child"], required=True)
    platform = "what `uname -m` says there"
    add("--platform", choices=["aarch64", "x86_64"], required=True, help=platform)
    python = "the version there"
    add("--python", choices=["3.11", "3.12", "3.13"], required=True, help=python)
    torch = "for children whose experiments need tensors: torch, too"
    add("--with-torch", action="store_true", help=torch)
    flags = "more options for pip, for instance another index"
    add("--pip-flags", type=shlex.split, default=[], metavar="'FLAG …'", help=flags)
    also = "a wheel of your own, for instance your environment's"
    add("--also", type=Path, action="append", default=[], metavar="FILE", help=also)
    chosen = parser.parse_args(arguments)
    if chosen.with_torch and chosen.role == "parent":
        parser.error("--with-torch: only a child computes with tensors")
    target = Target(chosen.role, chosen.platform, chosen.python, chosen.with_torch)
    out = chosen.out.resolve()
    try:
        with alone_in(out):
            added, removed = make_wheelhouse(out, target, chosen.pip_flags, chosen.also)
            sizes = [path.stat().st_size for path in (out / target.folder).glob("*.whl")]
    except Failure as failure:
        print(failure, file=sys.stderr)
        return failure.status
    except OSError as error:
        print(f"{chosen.out}: {error}", file=sys.stderr)
        return 1
    for sign, names in (("+", added), ("-", removed)):
        for name in names:
            print(sign, name)
    how = "changed" if added or removed else "unchanged"
    print(f"{how}: {out / target.folder} ({len(sizes)} wheels, {sum(sizes) / 1e6:.0f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
