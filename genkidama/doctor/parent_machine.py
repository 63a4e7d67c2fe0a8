"""What the doctor finds on a machine that is to be a parent: its certificate and its tokens."""

from __future__ import annotations

import ssl
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from genkidama.doctor.connection import certificate_facts
from genkidama.doctor.judgements.check import Check
from genkidama.doctor.judgements.connection import judge_certificate
from genkidama.errors import ConfigurationError
from genkidama.tokens import ANY, parse_tokens

if TYPE_CHECKING:
    from genkidama.cluster_settings import ParentSettings

__all__ = ["DISK", "NEEDLESS", "SEARCHING", "certificate", "tokens"]

#: Packages that a parent does not need: only children train.
NEEDLESS = ("gymnasium",)

#: Packages of an extra that a search's parent needs.
SEARCHING = ("optuna",)

#: Bytes that checkpoints and history should have. Below the first they soon lack room, below the
#: second some day.
DISK = (200 << 20, 1 << 30)


def certificate(settings: ParentSettings | None) -> list[Check]:
    """Whether certificate and key belong together, and for how long the certificate will do."""
    if settings is None or not (settings.certificate_file or settings.key_file):
        found = "no certificate is given, so children come by ws://, which is not encrypted"
        return [Check("certificate", "skipped", found)]
    from genkidama.parent.admission import make_context  # websockets

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
    return [judge_certificate("certificate", names, ends, time.time(), protocol)]


def _meet(server: ssl.SSLContext, certificate_file: str) -> tuple[list[str], float, str]:
    """A handshake in memory, with a client that trusts this one certificate.

    Returns:
        The certificate's names, when it ends in Unix seconds, and TLS' version.
    """
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
    """Whether the tokens file can be used, and how many names it lets in."""
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
    found = f"{len(names)} name{'s' * (len(names) != 1)}"
    found += ", any name among them" if ANY in names else ""
    if mode & stat.S_IROTH:
        found += ", but everybody on this machine may read them"
        return [Check("tokens", "warning", found, f"chmod o-r {path}")]
    if not names:
        found = "the file has no line yet, so nobody may join"
        return [Check("tokens", "warning", found, f"write lines of NAME TOKEN into {path}")]
    return [Check("tokens", "ok", found)]
