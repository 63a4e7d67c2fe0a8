"""Measurements: the machine, its packages and the way to a parent, as rows of the doctor's answer.

Laws of this file:
- An import that could kill a process, or never end, is tried in a separate process.
- The doctor does not join and sends no hello, so the parent keeps no record of a machine that it
  would admit. The token goes only to a parent whose certificate is verified, as a child sends it.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import http.client
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from genkidama._version import DISTRIBUTION, __version__
from genkidama.config.formatting import plural
from genkidama.config.parent_address import parent_url
from genkidama.errors import ConfigurationError
from genkidama.plugins.doctor import checks
from genkidama.plugins.doctor.checks import Check, Ended, Requirement
from genkidama.runtime.machine import available_bytes, available_cores

if TYPE_CHECKING:
    from genkidama.config.role import Role
    from genkidama.config.sections import ParentSettings

#: Bytes of disk: below the first, a child's state or an update of its packages may fail, and below
#: the second some day. The same for a parent's checkpoints and history.
CHILD_DISK = (100 << 20, 512 << 20)
PARENT_DISK = (200 << 20, 1 << 30)

#: An import may take so long. torch takes half a minute on a Raspberry Pi 3 with a good SD card.
IMPORT_SECONDS = 300.0

#: Each step of the way to a parent may take so long.
STEP_SECONDS = 10.0

#: systemd-timesyncd makes this file when it has set the clock.
_SYNCHRONIZED = Path("/run/systemd/timesync/synchronized")

#: The rows of a parent, in their order.
_ROWS = ("name", "port", "tls", "version", "token", "page")

_IMPORT = """
import importlib, json, sys
errors = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name.replace("-", "_"))
    except BaseException as error:
        errors[name] = f"{type(error).__name__}: {error}"
print(json.dumps(errors))
"""

_TORCH = """
import torch
torch.set_num_threads(1)
layer = torch.nn.Linear(8, 2)
layer(torch.ones(4, 8)).square().sum().backward()
assert bool(torch.isfinite(layer.weight.grad).all()), "a gradient is not finite"
print(torch.__version__)
"""

_BOX2D = """
from genkidama.config.sections import Environment
from genkidama.learning.environments import make_environment
environment = make_environment(Environment(id="LunarLander-v3"))
environment.reset(seed=0)
environment.step(0)
environment.close()
"""


# The machine.


def system() -> list[Check]:
    """Python, the processor and, on Linux, the C library."""
    bits = 64 if sys.maxsize > 2**32 else 32
    rows = [checks.judge_python(sys.version_info[:3])]
    rows.append(checks.judge_processor(platform.system(), platform.machine(), bits))
    if platform.system() == "Linux":
        rows.append(checks.judge_c_library(*platform.libc_ver()))
    return rows


def cores(wanted: int | None, root: Path = Path("/")) -> list[Check]:
    """CPU cores, and the tightest quota of this process' cgroup (version 2) and all above it."""
    quotas = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
        for own in (line[3:].lstrip("/") for line in lines if line.startswith("0::")):
            top = root / "sys/fs/cgroup"
            for folder in [top / own, *(top / own).parents]:
                with suppress(OSError):
                    quotas.append(checks.parse_quota((folder / "cpu.max").read_text()))
    quota = min((quota for quota in quotas if quota is not None), default=None)
    return [checks.judge_cores(wanted, available_cores(), quota)]


def memory(wanted: int | None, root: Path = Path("/")) -> list[Check]:
    """Memory for the wanted core processes; None means one for each CPU core."""
    swap = 0
    with suppress(OSError):
        lines = (root / "proc/meminfo").read_text().splitlines()
        swap = sum(int(line.split()[1]) << 10 for line in lines if line.startswith("SwapFree:"))
    count = available_cores() if wanted is None else wanted
    said, running = wanted is not None, running_bytes(root)
    return [checks.judge_memory(available_bytes(root), swap, count, said, running)]


def running_bytes(root: Path = Path("/")) -> int:
    """Bytes that this user's running children take, with all their processes; 0 if unknown."""
    children: set[int] = set()
    for folder in (root / "proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"\0-m\0genkidama.child\0" in (folder / "cmdline").read_bytes():
                children.add(int(folder.name))
    return proportional_bytes(children, root)


def proportional_bytes(roots: set[int], root: Path = Path("/")) -> int:
    """Bytes that these processes and all that they started take, by PSS; 0 if unknown."""
    parents: dict[int, int] = {}
    for folder in (root / "proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
    taken = 0
    for process in parents:
        line = [process]
        while (above := parents.get(line[-1], 0)) and above not in line:
            line.append(above)
        if roots.intersection(line):
            with suppress(OSError):
                rows = (root / f"proc/{process}/smaps_rollup").read_text().splitlines()
                taken += sum(int(row.split()[1]) << 10 for row in rows if row.startswith("Pss:"))
    return taken


def disks(folders: list[Path], limits: tuple[int, int]) -> Iterator[Check]:
    """The room on each disk that holds one of these directories, or will."""
    seen = set()
    for there in map(_existing, folders):
        try:
            free, device = shutil.disk_usage(there).free, os.stat(there).st_dev
        except OSError as error:
            way = "is the disk still there? see `dmesg`"
            yield Check("disk", "failed", f"{there}: {error.strerror}", way)
            continue
        if device not in seen:
            yield checks.judge_disk(free, str(there), *limits)
        seen.add(device)


def writable(name: str, folder: Path) -> list[Check]:
    """Checks whether this user may write to a directory, or make it. Nothing stays there."""
    there = _existing(folder)
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"\0")
    except OSError as error:
        way = f"give it to the user that runs Genkidama (sudo chown USER {there}), "
        way += "or run the doctor as that user (sudo -u USER …)"
        if error.errno == errno.EROFS:
            way = "its file system is read-only: mount it writable; "
            way += "a worn SD card ends like this, see `dmesg`"
        return [Check(name, "failed", f"{there} cannot be written: {error.strerror}", way)]
    return [Check(name, "ok", f"{folder} can be {'written' if folder.exists() else 'made'}")]


def _existing(folder: Path) -> Path:
    """The directory, or the nearest above it that exists."""
    there = folder.absolute()
    while not there.is_dir() and there != there.parent:
        there = there.parent
    return there


def _clock() -> Check:
    """Checks whether the clock may be right, as far as this machine alone can tell."""
    package = Path(__file__).resolve().parent.parent
    newest = max(path.stat().st_mtime for path in package.rglob("*.py"))
    said = "synchronized by systemd-timesyncd" if _SYNCHRONIZED.exists() else ""
    return checks.judge_clock_alone(time.time(), newest, said)


# Packages.


def _try(code: str, *arguments: str) -> Ended:
    """The end of an interpreter like this one that runs a text of Python."""
    command = [sys.executable, "-c", code, *arguments]
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=IMPORT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Ended(None, "")
    text = (ended.stderr if ended.returncode else ended.stdout).decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return Ended(ended.returncode, lines[-1] if lines else "", name_of_signal(ended.returncode))


def name_of_signal(code: int) -> str:
    """The signal of a return code as `subprocess` has it, as `"SIGILL"`; empty if none."""
    try:
        return signal.Signals(-code).name if code < 0 else ""
    except ValueError:
        return f"signal {-code}"


def _requirements(extra: tuple[str, ...] = ()) -> list[Requirement] | None:
    """Requirements of Genkidama, and the named packages of its extras; None if Genkidama is not
    installed."""
    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    items = map(checks.parse_requirement, lines)
    return [item for item in items if not item.marker or item.name in extra]


def _installed(name: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def packages(without: tuple[str, ...] = (), extra: tuple[str, ...] = ()) -> list[Check]:
    """A row for every needed package but torch, of `extra` ones of Genkidama's extras too."""
    requirements = _requirements(extra)
    if requirements is None:
        found = f"{DISTRIBUTION} is not installed, so it is not known what it needs"
        return [Check("packages", "warning", found, f"pip install {DISTRIBUTION}")]
    rows = []
    if (version := _installed("genkidama")) is not None:
        found = f"{version} is another project's, whose files lie among those of {DISTRIBUTION}"
        way = f"pip uninstall genkidama, then pip install --force-reinstall {DISTRIBUTION}"
        rows.append(Check("genkidama", "failed", found, way))
    needed = [item for item in requirements if item.name not in ("torch", *without)]
    names = [item.name for item in needed]
    tried = _try(_IMPORT, *names)
    errors = json.loads(tried.said) if tried.code == 0 else {}
    rows += [
        checks.judge_package(item, _installed(item.name), errors.get(item.name, ""))
        for item in needed
    ]
    if tried.code != 0:
        how = "does not end" if tried.code is None else tried.said
        how = f"dies of {tried.signal}" if tried.signal else how
        way = "import them one by one to see which; reinstall that one"
        rows.append(Check("packages", "failed", f"importing {', '.join(names)} {how}", way))
    return rows


def torch() -> list[Check]:
    """Checks whether torch can be imported and take a gradient."""
    extra = _requirements(("torch",)) or []
    required = next((item for item in extra if item.name == "torch"), None)
    specifiers, version = required.specifiers if required else "", _installed("torch")
    return [checks.judge_torch(specifiers, version, _try(_TORCH), platform.machine())]


def box2d() -> list[Check]:
    """Checks whether LunarLander can be played."""
    names = platform.system(), platform.machine()
    return [checks.judge_box2d(_try(_BOX2D), *names, sys.version_info[:2])]


def uvloop() -> list[Check]:
    """Checks whether there is the faster event loop, which nothing needs."""
    none = "not installed: a parent is slower without (pip install uvloop)"
    return [Check("uvloop", "ok", _installed("uvloop") or none)]


# A machine that is to be a parent.


def certificate(settings: ParentSettings | None) -> list[Check]:
    """Checks whether certificate and key belong together, and the end of the certificate."""
    if settings is None or not (settings.certificate_file or settings.key_file):
        found = "no certificate is given, so children come by ws://, which is not encrypted"
        return [Check("certificate", "skipped", found)]
    from genkidama.parent.authentication import make_context  # websockets

    try:
        context = make_context(settings.certificate_file, settings.key_file)
        assert context is not None
        names, ends, protocol = _meet(context, settings.certificate_file)
    except ConfigurationError as error:
        found, _, advice = str(error).partition("; ")
        return [Check("certificate", "failed", found, advice or "make a new one")]
    except ssl.SSLCertVerificationError as error:
        found = f"parent.certificate_file = {settings.certificate_file!r}: {error.verify_message}"
        way = "make a new one, if this machine's clock is right"
        return [Check("certificate", "failed", found, way)]
    if not names:
        found = f"{settings.certificate_file}: names no host (no subjectAltName)"
        way = "make a new one for the names and addresses that children use"
        return [Check("certificate", "failed", found, way)]
    return [checks.judge_certificate("certificate", names, ends, time.time(), protocol)]


def _meet(server: ssl.SSLContext, certificate_file: str) -> tuple[list[str], float, str]:
    """A handshake in memory with a client that trusts this one certificate: its names, its end in
    Unix seconds, and TLS' version."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certificate_file)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (ours, theirs, ours, theirs):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return *_certificate_facts(ours), ours.version() or ""


def _certificate_facts(connection: ssl.SSLSocket | ssl.SSLObject) -> tuple[list[str], float]:
    """The names in the other end's verified certificate, and when it ends, in Unix seconds."""
    found = connection.getpeercert() or {}
    names = [  # type: ignore[str-unpack]
        str(value)
        for kind, value in found.get("subjectAltName", ())
        if kind in ("DNS", "IP Address")
    ]
    return names, ssl.cert_time_to_seconds(str(found["notAfter"]))


def tokens(settings: ParentSettings | None) -> list[Check]:
    """Checks whether the tokens file can be used, and how many names it lets in."""
    from genkidama.protocol.tokens import ANY, parse_tokens

    if settings is None or not settings.tokens_file:
        way = "give --tokens-file, lines of NAME TOKEN"
        return [Check("tokens", "warning", "none: whoever reaches the parent may join", way)]
    path = Path(settings.tokens_file)
    try:
        mode = path.stat().st_mode
        entries = parse_tokens(path.read_text(encoding="utf-8"), str(path))
    except ConfigurationError as error:
        return [Check("tokens", "failed", str(error), "correct that line")]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no UTF-8 text"
        way = "make it, readable for the user that runs the parent"
        return [Check("tokens", "failed", f"{path}: cannot be read: {reason}", way)]
    names = {entry.name for entry in entries}
    found = plural(len(names), "name")
    found += ", any name among them" if ANY in names else ""
    if mode & stat.S_IROTH:
        found += ", but everybody on this machine may read them"
        return [Check("tokens", "warning", found, f"chmod o-r {path}")]
    if not names:
        found = "the file has no line yet, so nobody may join"
        return [Check("tokens", "warning", found, f"write lines of NAME TOKEN into {path}")]
    return [Check("tokens", "ok", found)]


# The way to a parent.


class Target(NamedTuple):
    """Address of a parent."""

    host: str
    port: int
    tls: bool


class Greeting(NamedTuple):
    """A parent's answer to a plain HTTP request."""

    status: int
    #: The header by which it names its software.
    server: str
    #: Seconds by which this machine's clock is ahead of the parent's, to half a second; None if
    #: the parent does not say.
    ahead: float | None


def parse_target(url: str) -> Target:
    """The parts of `ws://HOST:PORT` or `wss://HOST:PORT`."""
    parts = parent_url(url)
    return Target(parts.host, parts.port or (443 if parts.secure else 80), parts.secure)


def examine(role: Role | None) -> Iterator[Check]:
    """Rows of the parent that a child with these settings would go to, and the clock's. Each row
    comes as soon as it is known."""
    seen: set[str] = set()
    ahead, because = None, ""
    for row in _steps(role) if role is not None else ():
        if isinstance(row, Greeting):
            ahead = row.ahead
            continue
        seen.add(row.name)
        because = row.name if row.status == "failed" else because
        yield row
    if role is None:
        yield Check("parent", "skipped", "none is given: --parent ws://HOST:PORT")
    else:
        rows = (name for name in _ROWS if name not in seen)
        yield from (Check(name, "skipped", f"because of {because}") for name in rows)
    yield _clock() if ahead is None else checks.judge_clock_offset(ahead)


def _steps(role: Role) -> Iterator[Check | Greeting]:
    """One step after another, while each goes well; and the parent's answer, for its clock."""
    target = parse_target(role.parent)
    check = _resolve(target)
    yield check
    if check.status == "failed":
        return
    check, connection = reach(target)
    yield check
    if connection is None:
        return
    with closing(connection):
        check, secured = _secure(target, connection, role)
    yield check
    if secured is None:
        # A wrong clock is one reason for that.
        with suppress(OSError, http.client.HTTPException):
            yield _ask_unverified(target)
        return
    with closing(secured):
        check, greeting = greet(target, secured)
    yield check
    if greeting is not None:
        yield greeting
    if check.status != "failed":
        yield _admit(role)
        yield _show(target, role)


def _resolve(target: Target) -> Check:
    """Checks whether the parent's name is known."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except UnicodeError:
        return checks.judge_unknown_name(target.host, "is no valid name")
    except OSError as error:
        return checks.judge_unknown_name(target.host, error.strerror or str(error))
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    is_address = addresses == [target.host]
    text = target.host if is_address else f"{target.host} is {', '.join(addresses)}"
    return Check("name", "ok", text)


def reach(target: Target) -> tuple[Check, socket.socket | None]:
    """Checks whether somebody listens there. The caller closes the connection."""
    before = time.monotonic()
    try:
        connection = socket.create_connection((target.host, target.port), STEP_SECONDS)
    except OSError as error:
        reason = error.strerror or str(error)
        return checks.judge_closed_port(target.host, target.port, error.errno, reason), None
    milliseconds = 1000 * (time.monotonic() - before)
    found = f"{target.host}:{target.port} open, after {milliseconds:.1f} ms"
    return Check("port", "ok", found), connection


def _secure(
    target: Target, connection: socket.socket, role: Role
) -> tuple[Check, socket.socket | None]:
    """Checks the certificate of the parent. The caller closes the connection."""
    if not target.tls:
        return Check("tls", "skipped", "ws:// is not encrypted"), connection.dup()
    try:  # as `transport.make_context`, which cannot be imported where websockets is broken
        context = ssl.create_default_context(cafile=role.ca_file or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = not role.fingerprint
        context.verify_mode = ssl.CERT_NONE if role.fingerprint else ssl.CERT_REQUIRED
    except OSError as error:
        no_pem = isinstance(error, ssl.SSLError)
        what = "holds no PEM certificate" if no_pem else f"cannot be read: {error.strerror}"
        way = "copy the authority's certificate there: PEM, readable"
        return Check("tls", "failed", f"ca_file = {role.ca_file!r}: {what}", way), None
    try:
        secured = context.wrap_socket(connection, server_hostname=target.host)
    except OSError as error:
        return Check("tls", "failed", *_explain(error, role)), None
    if role.fingerprint:
        found = hashlib.sha256(secured.getpeercert(binary_form=True) or b"").hexdigest()
        if found == role.fingerprint:
            return Check("tls", "ok", f"{secured.version()}, with the fingerprint"), secured
        secured.close()
        way = "make a new join string on the parent's machine: genkidama token"
        return Check("tls", "failed", f"another certificate, with fingerprint {found}", way), None
    protocol = secured.version() or "no TLS"
    facts = _certificate_facts(secured)
    return checks.judge_certificate("tls", *facts, time.time(), protocol), secured


def greet(target: Target, connection: socket.socket) -> tuple[Check, Greeting | None]:
    """Checks whether a parent answers, and whether it has our version."""
    try:
        greeting = _ask(target, connection)
    except (OSError, http.client.HTTPException) as error:
        way = "is it a parent's port?"
        way += "" if target.tls else " If the parent has a certificate, use wss://"
        found = f"no HTTP answer: {str(error) or type(error).__name__}"
        return Check("version", "failed", found, way), None
    healthy, header = greeting.status == 200, greeting.server
    return checks.judge_server_header(header, healthy, __version__, our_protocol()), greeting


def _show(target: Target, role: Role) -> Check:
    """Checks whether the parent shows its run's page, to viewers or to everybody."""
    try:
        with socket.create_connection((target.host, target.port), STEP_SECONDS) as connection:
            check, secured = _secure(target, connection, role)
        if secured is None:
            return Check("page", "skipped", check.found)
        with closing(secured):
            status = _ask(target, secured, "/status").status
        reason = f"HTTP {status}"
    except (OSError, http.client.HTTPException) as error:
        status, reason = 0, str(error) or type(error).__name__
    scheme = "https" if target.tls else "http"
    return checks.judge_page(status, reason, f"{scheme}://{target.host}:{target.port}/")


def _ask(target: Target, connection: socket.socket, path: str = "/healthz") -> Greeting:
    talk = http.client.HTTPConnection(target.host, target.port)
    talk.sock = connection
    before = time.time()
    talk.request("GET", path)
    answer = talk.getresponse()
    asked = (before + time.time()) / 2
    answer.read(1024)
    ahead = None
    with suppress(ValueError, TypeError):
        theirs = parsedate_to_datetime(answer.headers["Date"]).timestamp()
        ahead = asked - theirs - 0.5  # the header leaves the fraction out
    return Greeting(answer.status, answer.headers.get("Server", ""), ahead)


def _ask_unverified(target: Target) -> Greeting:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    address = (target.host, target.port)
    with (
        socket.create_connection(address, STEP_SECONDS) as plain,
        context.wrap_socket(plain) as connection,
    ):
        return _ask(target, connection)


def _admit(role: Role) -> Check:
    """Checks whether the parent opens a websocket to this machine, with its token if it has one."""
    try:  # they import websockets and msgspec
        from genkidama.child.transport import FAILURES, Transport, explain, read_token
        from genkidama.protocol.tokens import is_loopback
    except Exception as error:
        return Check("token", "skipped", f"a package is missing or broken: {error}")

    async def knock(uplink: Transport) -> None:
        connection = await uplink.open()
        await connection.close()

    try:
        trust = {"ca_file": role.ca_file, "fingerprint": role.fingerprint}
        uplink = Transport(role.parent, token=read_token(role), **trust)
        asyncio.run(knock(uplink))
    except ConfigurationError as error:
        return Check("token", "failed", *_split(str(error), "; "))
    except FAILURES as error:
        return Check("token", "failed", *_split(explain(error, uplink), ": "))
    if not uplink.has_token:
        return Check("token", "ok", "not needed")
    if role.parent.startswith("ws:") and not is_loopback(uplink.host):
        way = "give the parent a certificate, and use wss://"
        return Check("token", "warning", "accepted, but everybody on the way can read it", way)
    return Check("token", "ok", "accepted")


def _explain(error: OSError, role: Role) -> tuple[str, str]:
    """A failure of TLS, and the way out."""
    try:  # they import websockets
        from genkidama.child.transport import Transport, explain
    except Exception:
        return str(error), "see docs/troubleshooting.md"
    return _split(explain(error, Transport(role.parent, ca_file=role.ca_file)), ": ")


def _split(sentence: str, between: str) -> tuple[str, str]:
    """The two parts of a sentence that says what is wrong, and then the way out."""
    found, _, advice = sentence.partition(between)
    return found, advice or "see docs/troubleshooting.md"


def our_protocol() -> int | None:
    """The number of our protocol; None if our messages cannot be imported."""
    try:
        from genkidama.protocol.messages import PROTOCOL  # msgspec and NumPy
    except Exception:
        return None
    return PROTOCOL
