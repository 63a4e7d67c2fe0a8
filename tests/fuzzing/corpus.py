"""The inputs that are kept of each target, and the smallest of those that reach the same code."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.helpers import ROOT

FOLDER = Path(__file__).parent / "corpus"
_PACKAGE = str(ROOT / "genkidama")


def load(name: str) -> list[bytes]:
    """The kept inputs of a target."""
    path = FOLDER / f"{name}.txt"
    return list(map(base64.b64decode, path.read_text().split())) if path.exists() else []


def store(name: str, inputs: Iterable[bytes]) -> None:
    """Replaces the kept inputs of a target."""
    lines = sorted({base64.b64encode(data).decode() for data in inputs}, key=lambda x: (len(x), x))
    (FOLDER / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


def smallest(target: Callable[[bytes], None], inputs: Iterable[bytes], most: int) -> list[bytes]:
    """Of these inputs the short ones that take every jump of the package which any of them takes.

    Args:
        most: bytes of all together.
    """
    kept: list[bytes] = []
    seen: set[tuple[Any, int, int]] = set()
    for data in sorted(set(inputs), key=lambda each: (len(each), each)):
        jumps = _jumps(target, data)
        if not jumps <= seen and sum(map(len, kept)) + len(data) <= most:
            seen |= jumps
            kept.append(data)
    return kept


def _jumps(target: Callable[[bytes], None], data: bytes) -> set[tuple[Any, int, int]]:
    """The pairs of lines of the package that are run one after the other, by their code."""
    found: set[tuple[Any, int, int]] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE):
            return None
        before = 0

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal before
            if event == "line":
                found.add((code, before, frame.f_lineno))
                before = frame.f_lineno
            return line

        return line

    tracer = sys.gettrace()
    sys.settrace(trace)
    try:
        target(data)
    finally:
        sys.settrace(tracer)
    return found
