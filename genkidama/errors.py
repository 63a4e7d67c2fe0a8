"""Errors, by their causes.

Every error that a user can cause is a `GenkidamaError`. Its text is one line that names the thing,
the value and the fix. The command line prints that line instead of a traceback.

    ConfigurationError   the user's file, option or environment        exit code 2
    ProtocolError        the other end of the websocket                refused, counted, never fatal
    EnvironmentFailure   the machine: a port, a directory, a disk      exit code 1
"""

from __future__ import annotations

import re

#: The token in an address. A `Path` has made one slash of two.
_SECRET = re.compile(r"((?:ws|http)s?:/{1,2}[^\s:@/#]*:)(?!(?:TOKEN|…)@)[^\s@#]+(?=@)")


def redacted(text: str) -> str:
    """The text without the tokens of join strings and viewers' addresses in it."""
    return _SECRET.sub(r"\1…", text)


class GenkidamaError(Exception):
    """The base of all errors that Genkidama raises on purpose. No text of theirs holds a token."""

    exit_code = 1

    def __init__(self, *words: object) -> None:
        super().__init__(*(redacted(word) if isinstance(word, str) else word for word in words))


class ConfigurationError(GenkidamaError):
    """A setting is wrong: a key, a type, a range, an import string."""

    exit_code = 2


class EnvironmentFailure(GenkidamaError):
    """This machine cannot do what was asked: a port is in use, a disk is full."""


class ProtocolError(GenkidamaError):
    """The other end said something that the protocol does not allow.

    `code` is one of `CODES`, stable across versions; the text is for people. `final` says that it
    would be refused again, however long one waits.
    """

    #: The codes of which that is true in any case.
    FINAL = (
        "malformed",
        "unknown",
        "version",
        "order",
        "length",
        "experience",
        "part",
        "role",
        "excluded",
    )

    CODES = (
        "malformed",  # bytes that are no message
        "unknown",  # a message type that does not exist
        "order",  # a message at the wrong time (a push before the join)
        "version",  # another version of the protocol
        "name",  # a name that another child is using
        "signature",  # another network
        "length",  # a vector of the wrong length
        "finite",  # NaN or infinity in a vector
        "experience",  # rows that make no sense
        "silent",  # nothing was said in time
        "full",  # no room for another child
        "trial",  # a push for a trial that the child does not own
        "base",  # a difference to weights that the parent does not know
        "flood",  # more frames than anybody needs
        "origin",  # a web page in somebody's browser
        "role",  # a role that the experiment has no room for
        "part",  # another part of a parent than the child takes it for
        "token",  # no token that the parent knows, or one for another name
        "excluded",  # a child that the run's owner has excluded
    )

    def __init__(self, code: str, reason: str, *, final: bool = False) -> None:
        assert code in self.CODES, code
        super().__init__(reason)
        self.code = code
        self.reason = redacted(reason)
        self.final = final
