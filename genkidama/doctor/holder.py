"""What the doctor finds on a machine that holds weights: a parent's directory, certificate and tokens."""

from __future__ import annotations

import ssl
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from genkidama.doctor import judgements
from genkidama.doctor.judgements import Check
from genkidama.doctor.parent import certificate_facts
from genkidama.errors import ConfigurationError

if TYPE_CHECKING:
    from genkidama.settings import ParentSettings

__all__ = ["DISK", "NEEDLESS", "SEARCHING", "certificate", "tokens"]

#: Packages that only those need who train.
NEEDLESS = ("gymnasium",)

#: Packages of an extra that a parent needs who searches.
SEARCHING = ("optuna",)

#: Bytes that checkpoints and history should have: below the first soon none, below the second some day.
DISK = (200 << 20, 1 << 30)


def certificate(settings: ParentSettings | None) -> list[Check]:
    """Whether certificate and key belong together, and for how long the certificate will do."""
    if settings is None or not (settings.certificate_file or settings.key_file):
        return [
            Check(
                "certificate",
                "skipped",
                "no certificate is given, so children come by ws://, which is not encrypted",
            )
        ]
    from genkidama.parent.admission import make_context

    try:
        context = make_context(settings.certificate_file, settings.key_file)
        assert context is not None
        names, ends, protocol = _meet(context, settings.certificate_file)
    except ConfigurationError as error:
        found, _, advice = str(error).partition("; ")
        return [Check("certificate", "failed", found, advice or "make a new one")]
    except ssl.SSLCertVerificationError as error:
        found = f"parent.certificate_file = {settings.certificate_file!r}: {error.verify_message}"
        return [
            Check(
                "certificate", "failed", found, "make a new one, if this machine's clock is right"
            )
        ]
    if not names:
        found = f"{settings.certificate_file}: names no host (no subjectAltName)"
        return [
            Check(
                "certificate",
                "failed",
                found,
                "make a new one for the names and addresses that children use",
            )
        ]
    return [judgements.certificate("certificate", names, ends, time.time(), protocol)]


def _meet(server: ssl.SSLContext, certificate_file: str) -> tuple[list[str], float, str]:
    """Names and end of the certificate, and TLS' version: from a handshake in memory with a client that believes just this certificate."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certificate_file)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (ours, theirs, ours, theirs):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    names, ends = certificate_facts(ours)
    return names, ends, ours.version() or ""


def tokens(settings: ParentSettings | None) -> list[Check]:
    """Whether the tokens file can be used, and whom it lets in."""
    if settings is None or not settings.tokens_file:
        return [
            Check(
                "tokens",
                "warning",
                "none: whoever reaches the parent may join",
                "give --tokens-file, lines of NAME TOKEN",
            )
        ]
    from genkidama.tokens import ANY, parse_tokens

    path = Path(settings.tokens_file)
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
        names = {entry.name for entry in parse_tokens(text, str(path))}
    except ConfigurationError as error:
        return [Check("tokens", "failed", str(error), "correct that line")]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no UTF-8 text"
        return [
            Check(
                "tokens",
                "failed",
                f"{path}: cannot be read: {reason}",
                "make it, readable for the user that runs the parent",
            )
        ]
    found = f"{len(names)} name{'s' * (len(names) != 1)}{', any name among them' if ANY in names else ''}"
    if mode & stat.S_IROTH:
        return [
            Check(
                "tokens",
                "warning",
                f"{found}, but everybody on this machine may read them",
                f"chmod o-r {path}",
            )
        ]
    if not names:
        return [
            Check(
                "tokens",
                "warning",
                "the file has no line yet, so nobody may join",
                f"write lines of NAME TOKEN into {path}",
            )
        ]
    return [Check("tokens", "ok", found)]
