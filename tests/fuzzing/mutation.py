"""Mutations that keep an input's form: of a tree of values, and of lines of text.

A fuzzer that flips bits breaks the length or the type of nearly all it touches, and the decoder
refuses it in its first line. These change a value, and leave the rest readable.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import msgspec

#: Makes an input of an input, with words that its kind may hold.
Mutation = Callable[[bytes, random.Random, tuple[str, ...]], bytes]


class Target(NamedTuple):
    """A function of bytes that raises nothing, and how to find bytes that it does not expect."""

    run: Callable[[bytes], None]
    mutate: Mutation
    #: Inputs to begin with.
    seeds: Callable[[], list[bytes]]
    #: Words that its inputs may hold.
    words: tuple[str, ...] = ()


#: Values at the border of a type, a range or a check.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 255, 4096, 2**31, 2**32, 2**53, 2**53 + 1, 2**63, 2**64 - 1),
    *(-(2**63), 0.5, -0.0, 1e-320, 1e30, 1e39, 1e308, float("nan"), float("inf"), -float("inf")),
    *("", "a", "*", "\0", "\n", "é", "x" * 64, "x" * 65, "1/1", "2/3", "float16", "int8", "int4"),
    *(b"", b"\0", b"\0\0\xc0\x7f", b"\xff" * 4, b"\0\0\x80\x3f" * 3, [], {}, [[]], {"": 0}),
)

_packed = msgspec.msgpack.Encoder()


def pack(tree: Any) -> bytes:
    """An input that is a tree: lists, maps, numbers, texts and bytes."""
    return _packed.encode(tree)


def unpack(data: bytes) -> Any:
    """The tree of an input; an empty list if it is none."""
    try:
        return msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError, TypeError):
        return []


def framed(header: Any, behind: bytes = b"") -> bytes:
    """A message on the wire, with this map and these bytes behind it."""
    packed = header if isinstance(header, bytes) else pack(header)
    padding = bytes(-(len(packed) + 4) % 8) if behind else b""
    return struct.pack("<I", len(packed)) + packed + padding + behind


def mutated_frame(data: bytes, rng: random.Random, words: tuple[str, ...]) -> bytes:
    """A message with a changed map or changed bytes behind it."""
    end = 4 + int.from_bytes(data[:4], "little")
    header, behind = unpack(data[4:end]), data[(end + 7) & ~7 :]
    if behind and rng.random() < 0.3:
        at = rng.randrange(len(behind))
        return framed(
            header, behind[:at] + rng.choice([b"", b"\0", b"\0\0\xc0\x7f"]) + behind[at + 4 :]
        )
    return framed(mutated(header, rng, words), behind)


def mutated_tree(data: bytes, rng: random.Random, words: tuple[str, ...]) -> bytes:
    """An input that is a tree, with a few changed values."""
    return pack(mutated(unpack(data), rng, words))


def mutated_json(data: bytes, rng: random.Random, words: tuple[str, ...]) -> bytes:
    """Lines of JSON, one of them changed, doubled or left out."""
    lines = data.split(b"\n")
    index = rng.randrange(len(lines))
    try:
        line = msgspec.json.encode(mutated(msgspec.json.decode(lines[index]), rng, words))
    except (msgspec.DecodeError, msgspec.EncodeError, RecursionError, ValueError):
        line = lines[index][: rng.randrange(len(lines[index]) + 1)]
    lines[index : index + 1] = rng.choice([[line], [line], [line, lines[index]], []])
    return b"\n".join(lines)


def mutated_text(data: bytes, rng: random.Random, words: tuple[str, ...]) -> bytes:
    """Text with a word in it, or one of its lines elsewhere."""
    lines = data.splitlines(keepends=True) or [b""]
    index, word = rng.randrange(len(lines)), rng.choice(words).encode()
    line = lines[index]
    start = rng.randrange(len(line) + 1)
    end = rng.choice([start, min(len(line), start + len(word)), len(line.rstrip(b"\n"))])
    ways: list[list[bytes]] = [[line[:start] + word + line[max(start, end) :]], [line, line], []]
    lines[index : index + 1] = rng.choice([*ways, ways[0], ways[0]])
    if rng.random() < 0.2:
        rng.shuffle(lines)
    return b"".join(lines)


def mutated(tree: Any, rng: random.Random, words: tuple[str, ...] = ()) -> Any:
    """The tree with one to three of its values changed."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        tree = _changed(tree, rng, words, rng.choice(_paths(tree) or [()]))
    return tree


def _paths(tree: Any) -> list[tuple[Any, ...]]:
    """The paths to all values in a tree."""
    keys = range(len(tree)) if isinstance(tree, list) else tree if isinstance(tree, dict) else ()
    return [(key, *rest) for key in keys for rest in [(), *_paths(tree[key])]]


def shortened(data: bytes) -> Iterator[bytes]:
    """Shorter inputs: a tree without one of its values, then the bytes without some of them."""
    tree = unpack(data)
    for *path, key in _paths(tree):
        shorter = deepcopy(tree)
        where = shorter
        for step in path:
            where = where[step]
        del where[key]
        yield pack(shorter)
    size = len(data) // 2
    while size:
        for start in range(0, len(data), size):
            yield data[:start] + data[start + size :]
        size //= 2


def _changed(tree: Any, rng: random.Random, words: tuple[str, ...], path: tuple[Any, ...]) -> Any:
    if not path:
        return _other(tree, rng, words)
    key, *rest = path
    tree = tree.copy()
    if rest:
        tree[key] = _changed(tree[key], rng, words, rest)
        return tree
    way = rng.random()
    if way < 0.6:
        tree[key] = _other(tree[key], rng, words)
    elif way < 0.7:
        del tree[key]
    elif isinstance(tree, list):
        if way < 0.9:
            tree.insert(rng.randrange(len(tree) + 1), tree[key])
        else:
            tree.append(_other(tree[key], rng, words))
    elif words and way < 0.9:
        tree[rng.choice(words)] = tree[key]
    else:
        tree[rng.choice(list(tree))] = tree[key]
    return tree


def _other(value: Any, rng: random.Random, words: tuple[str, ...]) -> Any:
    """Another value, often one like it."""
    way = rng.random()
    if way < 0.3:
        return rng.choice(VALUES)
    if way < 0.45 and words:
        return rng.choice(words)
    match value:
        case bool():
            return not value
        case int():
            number = rng.choice([value + 1, value - 1, value * 2, -value, rng.getrandbits(8)])
            return max(-(2**63), min(number, 2**64 - 1))
        case float():
            return rng.choice([value * 2, -value, value + 1e-6, value * 1e30, float(rng.random())])
        case str():
            at = rng.randrange(len(value) + 1)
            return value[:at] + rng.choice(["", "\0", " ", "ü", ".", "-", "9"]) + value[at + 1 :]
        case bytes():
            at = rng.randrange(len(value) + 1)
            size = rng.choice([0, 1, 4, 4, 64])
            return value[:at] + rng.randbytes(size) + value[at + rng.choice([0, size]) :]
        case list():
            return value + value if len(value) < 64 else value[:1]
    return rng.choice(VALUES)
