"""Words past the disk arrive whole, or not at all, and nobody waits for them."""

from __future__ import annotations

from genkidama.runs.fallback_log import FallbackReader, write_fallback


def test_lines_arrive_whole_and_nobody_waits() -> None:
    there = FallbackReader()
    write = write_fallback(there.descriptor)
    assert there.read() == []
    write(b'{"a": 1}\n{"b"')
    assert there.read() == [b'{"a": 1}']
    write(b": 2}\n")
    assert there.read() == [b'{"b": 2}']
    for _ in range(100):
        write(b"x" * 65_535 + b"\n")  # more than a pipe holds
    assert there.read()[0] == b"x" * 65_535
    there.close()
    write(b"nobody hears this\n")
