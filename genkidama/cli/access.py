"""The verbs that connect machines: `parent`, `token`, `join`, and `signature`."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import os
import secrets
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from genkidama._version import pip_install
from genkidama.cli.options import shown_steps
from genkidama.config.allowlist import allowing, check_imports, modules
from genkidama.config.decoding import parse_settings
from genkidama.config.experiment import Experiment
from genkidama.config.formatting import toml_value
from genkidama.config.parent_address import bracketed, host_and_port
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.protocol.tokens import (
    ANY,
    Invitation,
    is_name,
    link_cookie,
    link_token,
    parse_tokens,
    rotated,
    written,
)
from genkidama.runtime.address import parse_listen, reachable_host
from genkidama.runtime.files import disk_errors, make_folder, write_atomically

#: A join string in this variable stands in no list of processes.
JOIN_VARIABLE = "GENKIDAMA_JOIN"


def parent(options: argparse.Namespace) -> int:
    """A parent for other machines: with a certificate, and with tokens."""
    from genkidama.cli.progress import ParentProgress
    from genkidama.cli.verbs import say_reason
    from genkidama.parent.__main__ import main
    from genkidama.runs.resume import afterwards
    from genkidama.runs.run import Run

    if options.browsers:
        options.set = [*options.set, "parent.browsers=true"]
    for key, files in shown_steps(options).items():
        options.set = [*options.set, f"{key}={toml_value(files)}"]
    # What is wrong with it is said before a token is made that nobody will use.
    experiment = _experiment(options)
    draw = qr_drawer(options.qr)
    place = _Credentials(options.credentials)
    make_certificate(place.certificate, place.key)
    suffix = f"{place.option} --listen {shlex.quote(options.listen)}"
    suffix += f" --host {shlex.quote(options.host)}" if options.host else ""
    if not os.path.exists(place.tokens):  # a path's own method raises
        text = _invite(place, options, ANY, None)
        own = modules(experiment.to_dict())
        where = f" (where {' and '.join(own)} can be imported, too)" if own else ""
        print(
            f"on each machine that trains{where}:\n\n    genkidama join '{text}'{allowing(own)}\n"
        )
        if options.browsers:
            text = _browser_link(_invite(place, options, ANY, None))
            print(f"in a browser, for example on a phone, to make it a child:\n\n    {text}\n")
        draw(text)
        link = _show(place, options, "owner", None, "owner")[1]
        print(
            "the run's page, with its owner's controls, once in a browser, which it then knows:"
            f"\n\n    {link}\n"
        )
    else:
        print(
            "machines that have joined before come back; a string for others: "
            f"genkidama token{suffix}",
            flush=True,
        )
    print(f"another link to the run's page: genkidama token --viewer{suffix}", flush=True)
    display = None
    progress = ParentProgress(experiment)
    if progress.drawn:
        display = (progress.take, progress.say)
    arguments = [str(options.file), "--listen", options.listen]
    arguments += ["--tokens-file", str(place.tokens)]
    arguments += ["--certificate-file", str(place.certificate), "--key-file", str(place.key)]
    arguments += ["--out", str(options.out)] if options.out else []
    command = f"genkidama parent {shlex.quote(str(options.file))}{suffix}"
    for change in options.set:
        arguments += ["--set", change]
        command += f" --set {shlex.quote(change)}"
    try:
        code = main(arguments, f"{command} --out", display)
    finally:
        progress.close()
    if display is not None and progress.status.run:
        run = Run(options.out or Path("runs") / progress.status.run, modules(experiment.to_dict()))
        say_reason(progress)
        for line in afterwards(run, f"{command} --out {shlex.quote(str(run.path))}"):
            progress.say(line)
    return code


def token(options: argparse.Namespace) -> int:
    """Makes a token, or ends some. What it prints is shown once: the file has the hash alone."""
    place = _Credentials(options.credentials, options.tokens_file, options.certificate_file)
    if not is_name(options.name):
        raise ConfigurationError(
            f"NAME = {options.name!r}: expected 1 to 64 letters, digits, '.', '_' and '-', "
            "a letter or digit first, or * for any name"
        )
    if options.viewer and options.owner:
        raise ConfigurationError(
            "--viewer and --owner: give one; an owner's token also shows the run"
        )
    kind = "owner" if options.owner else "viewer" if options.viewer else ""
    if kind == "owner" and options.name == ANY:
        options.name = "owner"  # the history says who
    if options.list:
        print("\n".join(_listed(place.tokens)))
    elif options.revoke:
        _end(place.tokens, options.name, None, kind)
        print(f"{options.name}: its tokens are removed from {place.tokens}", file=sys.stderr)
    else:
        draw = qr_drawer(options.qr)
        last = None if options.days is None else _day(options.days)
        if options.rotate is not None:
            _address_and_fingerprint(place, options, kind)  # another can be made before these end
            _end(place.tokens, options.name, _day(options.rotate), kind)
        if kind:
            text, code = _show(place, options, options.name, last, kind)
        else:
            text = code = _invite(place, options, options.name, last)
            if options.browser:
                text = code = _browser_link(text)
        print(text, flush=True)
        draw(code)
    return 0


def join(options: argparse.Namespace) -> int:
    """Trains on this machine for the parent of a join string."""
    from genkidama.child.child import Child
    from genkidama.cli.progress import ChildDisplay
    from genkidama.runtime.forkserver import prefork
    from genkidama.runtime.log import configure_logging

    text = options.string or os.environ.get(JOIN_VARIABLE, "")
    if text == "-":
        text = sys.stdin.readline() if sys.stdin else ""
    if not text:
        raise ConfigurationError(
            f"where is the parent? give the string that `genkidama token` prints, - to read it "
            f"from standard input, or {JOIN_VARIABLE}"
        )
    invitation = Invitation.parse(text)
    name = options.name or ("" if invitation.name == ANY else invitation.name)
    child = Child(
        invitation.parent,
        name=name,
        cores=options.cores,
        state=options.state,
        stay=options.stay,
        token=invitation.token,
        allow=options.allow,
        fingerprint=invitation.fingerprint,
    )
    child.command = "the same command again"  # with the token, which no log may have
    prefork()
    display = ChildDisplay(child)
    if not display.drawn:
        configure_logging(named=True)
        child.run()
        return 0
    configure_logging(named=True, say=display.say)
    with display:
        display.refresh()
        child.run()
    again = "; to go on, type the same command again" if child.reason == "stopped" else ""
    print(f"ended: {child.reason}{again}", file=sys.stderr)
    return 0


def signature(options: argparse.Namespace) -> int:
    """Prints the parts of an experiment's network, and its digest for `parent.signature`."""
    from genkidama.runtime.task import call

    experiment = _experiment(options)
    # An experiment that is looked at may be somebody else's; one that is trained is the user's.
    check_imports(experiment.to_dict(), options.allow, str(options.file))
    task = "genkidama.runs.first_weights:describe", (experiment.to_dict(),)
    entries, digest = call(experiment, *task, "its network cannot be built")
    for name, shape in entries:
        print(f"# {name} {list(shape)}", file=sys.stderr)
    print(digest)
    return 0


def _experiment(options: argparse.Namespace) -> Experiment:
    return Experiment.load(options.file).with_settings(parse_settings(options.set))


class _Credentials:
    """Paths of a parent's certificate, key and tokens; in this user's folder if none is given."""

    def __init__(
        self, folder: Path | None, tokens: Path | None = None, certificate: Path | None = None
    ) -> None:
        base = folder or default_folder()
        self.option = "" if folder is None else f" --credentials {shlex.quote(str(folder))}"
        self.certificate = certificate or base / "certificate.pem"
        self.key = base / "key.pem"
        self.tokens = tokens or base / "tokens"


def _invite(
    place: _Credentials, options: argparse.Namespace, name: str, last: datetime | None
) -> str:
    """Makes a token, writes its hash, and gives the join string."""
    address, fingerprint = _address_and_fingerprint(place, options, "")
    secret = secrets.token_urlsafe(32)
    _add(place.tokens, written(name, secret, last))
    return str(Invitation(f"wss://{address}", name, secret, fingerprint))


def _browser_link(invitation: str) -> str:
    """The link that makes a browser a child. Its fragment, name and token, is sent to no server."""
    found = Invitation.parse(invitation)
    place = found.parent.partition("://")[2]
    return f"https://{place}/join#{found.name}:{found.token}"


def _show(
    place: _Credentials, options: argparse.Namespace, name: str, last: datetime | None, kind: str
) -> tuple[str, str]:
    """Makes a viewer's or an owner's token, writes its hash, and says how to look with it; the link
    again."""
    address, fingerprint = _address_and_fingerprint(place, options, kind)
    scheme = "https" if fingerprint else "http"
    key = secrets.token_urlsafe(32)
    salt = secrets.token_hex(16)
    secret = link_token(key, salt)
    _add(place.tokens, written(name, secret, last, salt, link_cookie(key, salt), kind))
    end = f"#{fingerprint}" if fingerprint else ""
    link = f"{scheme}://{address}/?key={key}"
    text = (
        f"in a browser, once; it then knows you:\n\n    {link}\n\n"
        f"in a terminal: genkidama top '{scheme}://{kind}:{secret}@{address}{end}'\n"
        f"for a monitor: Authorization: Bearer {secret}"
    )
    return text, link


def _address_and_fingerprint(
    place: _Credentials, options: argparse.Namespace, kind: str
) -> tuple[str, str]:
    """The parent's `HOST:PORT` for children and viewers, and its certificate's fingerprint; empty
    for a viewer or an owner of a parent without one."""
    binding = parse_listen(options.listen)
    if not binding.get("port"):
        raise ConfigurationError(f"--listen {options.listen}: children need to know the port")
    host = bracketed((options.host or reachable_host(binding["host"])).strip("[]"))
    if host_and_port(f"{host}:{binding['port']}") is None:
        raise ConfigurationError(
            f"--host {options.host}: expected a name or address without a port"
        )
    bare = kind and not os.path.exists(place.certificate)
    return f"{host}:{binding['port']}", "" if bare else fingerprint_of(place.certificate)


def _day(days: int) -> datetime:
    if not 0 <= days <= 36_500:
        raise ConfigurationError(f"{days} days: 0 to 36500 are allowed")
    return datetime.now(UTC) + timedelta(days=days)


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path}: there are no tokens yet; `genkidama token` makes one, and `genkidama parent` "
            "the first, or name the parent's by --tokens-file"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no UTF-8 text"
        raise ConfigurationError(
            f"{path}: cannot be read: {reason}; name the tokens by --tokens-file"
        ) from None
    parse_tokens(text, str(path))
    return text


def _add(path: Path, line: str) -> None:
    """Adds a line in one step, so that a parent that reads meanwhile reads whole lines."""
    make_folder(path.parent)
    present = _read(path) if os.path.exists(path) else ""
    text = "\n" * (present[-1:] not in ("", "\n")) + line
    with disk_errors(path), open(path, "a", opener=partial(os.open, mode=0o600)) as file:
        file.write(text)


def _end(path: Path, name: str, last: datetime | None, kind: str) -> None:
    """Ends the tokens of a name. The file keeps its owner and its mode."""
    text = _read(path)
    if (name, kind) not in {(each.name, each.kind) for each in parse_tokens(text, str(path))}:
        what = f"{kind}'s token" if kind else "token"
        raise ConfigurationError(f"{path}: has no {what} for {name!r}; see genkidama token --list")
    before = path.stat()
    write_atomically(path, rotated(text, name, last, kind).encode())
    path.chmod(before.st_mode & 0o777)
    with suppress(PermissionError):
        os.chown(path, before.st_uid, before.st_gid)


def _listed(path: Path) -> list[str]:
    now = datetime.now(UTC).timestamp()
    lines = []
    for entry in parse_tokens(_read(path), str(path)):
        end = "without an end"
        if entry.until != float("inf"):
            last = datetime.fromtimestamp(entry.until, UTC) - timedelta(days=1)
            end = f"{'ended' if entry.until <= now else 'until'} {last:%Y-%m-%d}"
        kind = f"  {entry.kind}" if entry.kind else ""
        lines.append(f"{entry.name}  {end}  sha256:{entry.digest[:12]}…{kind}")
    return lines


#: A child with a wrong clock may join, and nobody has to think of a renewal: what counts is the
#: fingerprint.
_DAYS = 36_500


def default_folder() -> Path:
    """The folder of this user's certificate, key and tokens: `~/.config/genkidama`."""
    above = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(above) if above else Path.home() / ".config") / "genkidama"


def make_certificate(certificate: Path, key: Path) -> None:
    """Makes a key and its certificate, unless they are there. Only this user may read the key.

    Raises:
        EnvironmentFailure: there is no `openssl`, it fails, or the key cannot be written.
    """
    # On a full disk openssl leaves empty ones, and says nothing.
    if all(each.is_file() and each.stat().st_size for each in (certificate, key)):
        return
    openssl = shutil.which("openssl")
    if openssl is None:
        raise EnvironmentFailure(
            f"{certificate}: cannot be made: there is no command openssl; "
            f"install it (apt install openssl), or put one there, and its key into {key}"
        )
    make_folder(certificate.parent)
    with disk_errors(key):
        os.close(os.open(key, os.O_CREAT | os.O_WRONLY, 0o600))
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", str(_DAYS), "-subj", "/CN=Genkidama parent"]
    command += ["-addext", f"subjectAltName=DNS:{socket.gethostname()},DNS:localhost"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise EnvironmentFailure(f"{certificate}: cannot be made: openssl: {last}")


_AWAY = "if `genkidama parent` has made it, move it away, and it makes another"


def fingerprint_of(certificate: Path) -> str:
    """SHA-256 of the first certificate in a PEM file, in 64 hexadecimal digits.

    Raises:
        ConfigurationError: the file cannot be read, or holds none.
    """
    try:
        text = certificate.read_text(encoding="ascii")
        begin = text.index("-----BEGIN CERTIFICATE-----")
        end = text.index("-----END CERTIFICATE-----") + len("-----END CERTIFICATE-----")
        found = ssl.PEM_cert_to_DER_cert(text[begin:end])
    except FileNotFoundError:
        raise ConfigurationError(
            f"{certificate}: no such file; `genkidama parent` makes it when it starts, "
            "or give --certificate-file"
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"{certificate}: cannot be read: {error.strerror}; {_AWAY}"
        ) from None
    except ValueError:
        raise ConfigurationError(f"{certificate}: holds no PEM certificate; {_AWAY}") from None
    return hashlib.sha256(found).hexdigest()


#: Modules of light around a code; readers want some.
_BORDER = 2

#: White on black whatever the terminal's colours are, and back.
_PAINT, _RESET = "\033[97;40m", "\033[0m"


def qr_drawer(wanted: bool) -> Callable[[str], None]:
    """A function that draws a text as a QR code on standard error; it does nothing unless wanted.

    Where the terminal is too narrow, or is none, it prints a line about that instead.

    Raises:
        ConfigurationError: a code is wanted, and segno is not installed.
    """
    if not wanted:
        return lambda text: None
    if importlib.util.find_spec("segno") is None:
        raise ConfigurationError(f"--qr: needs segno: {pip_install('page')}")
    return _draw


def _draw(text: str) -> None:
    import segno

    code = segno.make(text, error="l", micro=False)
    needed, file = code.symbol_size(border=_BORDER)[0], sys.stderr
    utf8 = (file.encoding or "").lower().replace("-", "") == "utf8"
    if not (file.isatty() and utf8):
        problem = "standard error is no terminal with UTF-8"
    elif (columns := os.get_terminal_size(file.fileno()).columns) < needed:
        problem = f"it takes {needed} columns, and the terminal has {columns}"
    else:
        drawn = io.StringIO()
        code.terminal(drawn, border=_BORDER, compact=True)
        lines = [f"{_PAINT}{line}{_RESET}" for line in drawn.getvalue().splitlines()]
        print("\n".join(lines), file=file, flush=True)
        return
    print(f"--qr: no code is shown: {problem}", file=file)
