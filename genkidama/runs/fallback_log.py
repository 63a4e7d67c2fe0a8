"""Words past the disk: from a parent to its starter, where the history cannot be written.

A pipe carries lines of a history. Nobody waits for it: what finds no room in it is dropped.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from genkidama.runs.history import whole_lines

__all__ = ["FallbackReader", "write_fallback"]


def write_fallback(descriptor: int) -> Callable[[bytes], None]:
    """A function that writes lines to the inherited end of an `FallbackReader`."""
    os.set_blocking(descriptor, False)

    def write(lines: bytes) -> None:
        with suppress(OSError):  # it is full, or nobody reads any more
            os.write(descriptor, lines)

    return write


class FallbackReader:
    """The starter's end of the pipe. Its processes inherit `descriptor`, one after another."""

    def __init__(self) -> None:
        self._reader, self.descriptor = os.pipe()
        os.set_blocking(self._reader, False)
        self._begun = b""

    def read(self) -> list[bytes]:
        """The whole lines that have come since the last call."""
        with suppress(BlockingIOError):
            self._begun += os.read(self._reader, 1 << 16)
        whole = whole_lines(self._begun)
        self._begun = self._begun[len(whole) :]
        return whole.splitlines()

    def close(self) -> None:
        """Closes both ends here."""
        os.close(self._reader)
        os.close(self.descriptor)
