"""Why there is no connection to the parent: errors as sentences with the way out."""

from __future__ import annotations

import socket
import ssl
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

import structlog
import websockets

from genkidama.child.credentials import OtherCertificate
from genkidama.child.transport import retry_after
from genkidama.runtime.pacing import Once

if TYPE_CHECKING:
    from genkidama.child.transport import Transport
    from genkidama.protocol.session import RequestRefused

__all__ = ["ConnectErrors", "explain"]

log = structlog.get_logger()

#: OpenSSL's X509_V_ERR codes: a certificate's dates, its names or its authority are wrong.
_NOT_YET_VALID = 9
_EXPIRED = 10
_OTHER_NAMES = {62, 64}
_UNKNOWN_AUTHORITY = {2, 18, 19, 20, 21}


class ConnectErrors:
    """Says once why a child is not let in, and again when the reason has changed."""

    def __init__(self, uplink: Transport) -> None:
        #: Why the parent is waited for at present; empty while it is not.
        self.problem = ""
        self._uplink = uplink
        self._refusal = Once()
        self._warned = False

    def connected(self) -> None:
        """The parent has answered a hello."""
        self.problem = self._refusal.message

    def admitted(self) -> None:
        """The parent has let the child in."""
        self.problem = ""
        self._refusal.message = ""

    def unreachable(self, child: str, error: Exception) -> None:
        """There is no connection."""
        reason = explain(error, self._uplink)
        if reason != self.problem:
            self.problem = reason
            self._say("parent not reachable, still trying", child, reason=reason)

    def refused(self, child: str, refusal: RequestRefused) -> None:
        """The parent refuses the child.

        Raises:
            Refused: waiting does not help.
        """
        if refusal.final:
            raise refusal
        self.problem = str(refusal)
        if self._refusal.is_new(self.problem):
            self._say("refused, still trying", child, reason=self.problem)

    def readable_token(self, child: str) -> None:
        """Warns of a token that everybody on the way can read, if there is one."""
        if self._uplink.shows_token and not self._warned:
            self._warned = True
            self._say("the token travels readable; use wss://", child)

    def _say(self, event: str, child: str, **more: str) -> None:
        log.warning(event, child=child, parent=self._uplink.parent, **more)


def explain(error: BaseException, uplink: Transport) -> str:
    """Why there is no connection to the parent, in a sentence with the way out."""
    parent = uplink.parent
    match error:
        case websockets.InvalidStatus() if seconds := retry_after(error):
            return f"the parent has no room for another connection, and says: in {seconds:.0f} s"
        case websockets.InvalidStatus():
            return _explain_status(error.response.status_code, uplink.has_token)
        case OtherCertificate():
            return (
                f"the parent's certificate is another one: {error}; was it renewed? "
                "Make a new join string on the parent's machine: genkidama token"
            )
        case ssl.SSLCertVerificationError():
            return _explain_certificate(error, uplink.host, uplink.ca_file)
        case ssl.SSLError():
            return (
                f"no TLS 1.3 with {parent}: {error.reason or error}; "
                "if that parent has no certificate, use ws://"
            )
        case ConnectionResetError() if uplink.secure:
            return f"{parent} ends the connection: if that parent has no certificate, use ws://"
        case websockets.InvalidMessage() if not uplink.secure:
            return (
                f"{parent} gives no HTTP answer: if that parent has a certificate, use wss://; "
                "or it has no room for another connection"
            )
        case ConnectionRefusedError():
            return (
                f"nobody listens at {parent}: is the parent started, and are host and port right?"
            )
        case TimeoutError():
            return (
                f"{parent} does not answer: does that machine run, is the address right, "
                "and does a firewall let this child through?"
            )
        case socket.gaierror():
            return (
                f"{uplink.host} is no known name: {error.strerror}; "
                "check the name, or give the parent's IP address"
            )
    return str(error) or type(error).__name__


def _explain_status(status: int, has_token: bool) -> str:
    match status:
        case HTTPStatus.UNAUTHORIZED if has_token:
            return (
                "the parent does not know this child's token: "
                "compare the child's token_file with the parent's tokens_file"
            )
        case HTTPStatus.UNAUTHORIZED:
            return (
                "the parent asks for a token and this child has none: "
                "give it one with token_file, and the parent a line in tokens_file"
            )
        case HTTPStatus.SERVICE_UNAVAILABLE:
            return "the parent is shutting down"
    return (
        f"the answer is HTTP {status}, and a parent's would be 101: "
        "does a parent listen at this address?"
    )


def _explain_certificate(error: ssl.SSLCertVerificationError, host: str, ca_file: str) -> str:
    today = time.strftime("%Y-%m-%d", time.gmtime())
    match error.verify_code:
        case code if code == _NOT_YET_VALID:
            return (
                "the parent's certificate is not yet valid: "
                f"is this machine's clock right? It says {today}"
            )
        case code if code == _EXPIRED:
            return (
                "the parent's certificate has expired: "
                f"renew it, if this machine's clock, which says {today}, is right"
            )
        case code if code in _OTHER_NAMES:
            return (
                f"the parent's certificate is for other names than {host}: "
                f"use one of those names, or make a certificate for {host}"
            )
        case code if code in _UNKNOWN_AUTHORITY and ca_file:
            return (
                "the parent's certificate is of an unknown authority: "
                f"does {ca_file} hold the authority that signed it?"
            )
        case code if code in _UNKNOWN_AUTHORITY:
            return (
                "the parent's certificate is of an unknown authority: "
                "set ca_file to the authority that signed it"
            )
    return f"the parent's certificate cannot be verified: {error.verify_message}"
