"""What a child shows to its parent, its token, and what it trusts: an authority's certificates."""

from __future__ import annotations

import hashlib
import hmac
import os
import ssl
import stat
from collections.abc import Sequence
from pathlib import Path

import structlog

from genkidama.config.role import Role
from genkidama.errors import ConfigurationError
from genkidama.protocol.tokens import TOKEN, is_token

__all__ = [
    "TOKEN_VARIABLE",
    "OtherCertificate",
    "make_context",
    "one_for_each",
    "pinned",
    "read_token",
]

#: A token in this variable is taken rather than one in a file.
TOKEN_VARIABLE = "GENKIDAMA_TOKEN"  # noqa: S105

log = structlog.get_logger()


def read_token(role: Role) -> str:
    """The token by which the parent knows this child: from the environment or, if there is none,
    from `role.token_file`; empty if there is none either.

    Raises:
        ConfigurationError: the file cannot be read, or what is found is no token.
    """
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    where = TOKEN_VARIABLE
    if not token and not role.token_file:
        return ""
    if not token:
        where = f"token_file = {role.token_file!r}"
        token = _read(role.token_file, where)
    if not is_token(token):
        raise ConfigurationError(f"{where}: holds no token: expected {TOKEN}, and nothing else")
    return token


def _read(path: str, where: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no UTF-8 text"
        raise ConfigurationError(
            f"{where}: cannot be read: {reason}; "
            "put this child's token there, or take the setting out"
        ) from None
    if mode & stat.S_IROTH:
        way_out = f"chmod o-r {path}"
        log.warning("everybody on this machine may read the token", file=path, way_out=way_out)
    return token


def make_context(ca_file: str) -> ssl.SSLContext:
    """What a child verifies its parent with: certificate, host name, and TLS 1.3 or later.

    Args:
        ca_file: PEM certificates of the authority; empty means the system's.

    Raises:
        ConfigurationError: the file cannot be read, or holds no certificate.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except ssl.SSLError:
        raise ConfigurationError(f"ca_file = {ca_file!r}: holds no PEM certificate") from None
    except OSError as error:
        raise ConfigurationError(
            f"ca_file = {ca_file!r}: cannot be read: {error.strerror}"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


class OtherCertificate(ssl.SSLCertVerificationError):
    """The parent shows another certificate than the one whose fingerprint is known."""

    def __str__(self) -> str:
        return str(self.args[0])


def pinned(fingerprint: str) -> ssl.SSLContext:
    """What a child verifies its parent with if it knows the parent's very certificate: TLS 1.3.

    The parent proves in the handshake that it has the certificate's key. Names, dates and
    authorities do not matter. Nothing is sent, the token neither, before the fingerprint is right.

    Args:
        fingerprint: SHA-256 of the certificate, in 64 hexadecimal digits.
    """

    class Pinned(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            found = hashlib.sha256(self.getpeercert(binary_form=True) or b"").hexdigest()
            if not hmac.compare_digest(found, fingerprint):
                raise OtherCertificate(f"its fingerprint is {found}, expected {fingerprint}")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.sslobject_class = Pinned
    return context


def one_for_each(fingerprint: str, places: Sequence[str], parent: str) -> list[str]:
    """The fingerprint of each part of a parent.

    Args:
        fingerprint: one for all parts, or one for each, with commas in between.
        places: the parts' addresses.
        parent: the same, as the user wrote them.

    Raises:
        ConfigurationError: there are more or fewer fingerprints than parts.
    """
    known = fingerprint.split(",")
    if len(known) == 1:
        return known * len(places)
    if len(known) != len(places):
        raise ConfigurationError(
            f"fingerprint: names {len(known)} certificates, and parent = {parent!r} "
            f"{len(places)} parts; give one for all parts, or one for each"
        )
    return known
