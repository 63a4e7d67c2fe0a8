"""Targets that decode: messages, encodings, tokens and join strings."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, ProtocolError
from genkidama.protocol.delta import ENCODINGS, compress, expand
from genkidama.protocol.messages import (
    PROTOCOL,
    Hello,
    Join,
    Leave,
    Message,
    Pull,
    Push,
    Refusal,
    Weights,
    Welcome,
    decode_reply,
    decode_request,
    encode,
)
from genkidama.protocol.tokens import Invitation, find_entry, parse_tokens, rotated, written
from genkidama.protocol.vector import DTYPE
from tests.fuzzing.conversations import ENTRIES, FIELDS, VECTOR
from tests.fuzzing.mutation import (
    Target,
    mutated_frame,
    mutated_text,
    mutated_tree,
    pack,
    unpack,
)


def messages(data: bytes) -> None:
    """A frame is a message or refused, and a message that is sent on is the same again."""
    for decode in (decode_request, decode_reply):
        with suppress(ProtocolError):
            message = decode(data)
            frame = encode(message)
            assert encode(decode(frame)) == frame


def some_messages() -> list[bytes]:
    experiment = Experiment().to_dict()
    said: list[Message] = [
        Hello(protocol=PROTOCOL, name="pi-1", session="s", encodings=["int4"], trial=3),
        Join(signature=ENTRIES, cores=4),
        Push(version=1, sequence=2, steps=3, returns=[1.0], measures={"loss": 0.5}, vector=VECTOR),
        Push(version=1, sequence=2, encoding="int8", vector=np.zeros(9, np.uint8)),
        Pull(wait=True),
        Leave(reason="stopped", over=True, proof="p"),
        Welcome(protocol=PROTOCOL, experiment=experiment, run="run-1", encoding="int4"),
        Weights(version=3, progress=0.5, stop="over", steps=7, children=1.5, vector=VECTOR),
        Refusal(code="name", reason="is taken", final=True),
    ]
    return [encode(message) for message in said]  # type: ignore[arg-type]


def encodings(data: bytes) -> None:
    """A difference gives a vector or is refused, and both ends compute the same vector."""
    match unpack(data):
        case [int(kind), int(trainable), bytes(base), bytes(difference)]:
            vector = np.frombuffer(base[: len(base) & ~3], DTYPE)
            encoding, trainable = ENCODINGS[kind % 3], trainable % (len(vector) + 1)
            with suppress(ProtocolError):
                read = expand(encoding, np.frombuffer(difference, np.uint8), vector, trainable)
                assert read.shape == vector.shape
                assert read.dtype == DTYPE
                if (written := compress(encoding, read, vector, trainable)) is not None:
                    again = expand(encoding, written[0], vector, trainable)
                    assert again.tobytes() == written[1].tobytes()


def some_differences() -> list[bytes]:
    rng = np.random.default_rng(0)
    found = []
    for size, trainable in ((3, 3), (300, 297)):
        base, vector = rng.standard_normal((2, size)).astype(DTYPE)
        for number, encoding in enumerate(ENCODINGS):
            written = compress(encoding, vector, base, trainable)
            assert written is not None
            found.append(pack([number, trainable, base.tobytes(), written[0].tobytes()]))
    return found


def tokens(data: bytes) -> None:
    """A tokens file is read or refused; one that was read is still read when tokens are rotated."""
    text = data.decode(errors="surrogateescape")
    with suppress(ConfigurationError):
        entries = parse_tokens(text, "tokens")
        for entry in entries:
            assert not math.isnan(entry.until)
        for name in {entry.name for entry in entries}:
            for kind in ("", "viewer", "owner"):
                left = parse_tokens(rotated(text, name, None, kind), "rotated")
                assert left == tuple(
                    each for each in entries if (each.name, each.kind) != (name, kind)
                )
        line = written("new-1", "token-of-new-1-xyz")
        assert find_entry("token-of-new-1-xyz", parse_tokens(line, "written")) is not None


def some_tokens() -> list[bytes]:
    digest = "ab" * 32
    return [
        b"pi-1 token-of-the-pi-01 # a comment\n* sha256:"
        + digest.encode()
        + b" until=2026-12-31\n",
        f"me sha256:{digest} viewer={'0' * 32}.{digest} until=9999-12-31\n".encode(),
        b"\n# nothing\nme token-of-a-viewer viewer\n",
    ]


def join(data: bytes) -> None:
    """A join string is read or refused, and what was read is written as it came."""
    text = data.decode(errors="surrogateescape")
    with suppress(ConfigurationError):
        found = Invitation.parse(text)
        assert Invitation.parse(str(found)) == found
        assert not found.token or found.token not in repr(found)


def some_join_strings() -> list[bytes]:
    return [
        b"wss://pi-1:token-of-the-pi-01@shelf.local:8765#" + b"ab" * 32,
        b"ws://127.0.0.1:8765",
        b"wss://*:token-of-the-pi-01@[fe80::1%eth0]:8765/#" + b"0" * 64,
    ]


TARGETS = {
    "messages": Target(messages, mutated_frame, some_messages, FIELDS),
    "encodings": Target(encodings, mutated_tree, some_differences),
    "tokens": Target(
        tokens,
        mutated_text,
        some_tokens,
        (
            "*",
            "sha256:",
            "until=2026-02-30",
            "until=9999-12-31",
            "viewer",
            "viewer=",
            "\n",
            "#",
            " ",
        ),
    ),
    "join": Target(
        join,
        mutated_text,
        some_join_strings,
        ("wss://", "ws://", "http://", "@", ":", "#", "/", "[", "]", "%", "65536", "*", "\n"),
    ),
}
