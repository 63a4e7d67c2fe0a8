"""What the kernel lets a process take."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys

from genkidama.runtime.machine import own_bytes
from tests.helpers import ROOT

CODE = """
import json, sys
from genkidama.runtime.machine import limit_growth
from genkidama.runtime.shared_block import Block
limit_growth(None if sys.argv[1] == "None" else int(sys.argv[1]))
def fits(size):
    try:
        return len(bytearray(size)) == size
    except MemoryError:
        return False
print(json.dumps([fits(50 << 20), fits(200 << 20)]))
limit_growth(1 << 40)  # a tighter one stays
print(json.dumps(fits(200 << 20)))
"""


def limited(by: int | None) -> list[object]:
    program = [sys.executable, "-c", CODE, str(by)]
    done = subprocess.run(program, capture_output=True, text=True, check=True, cwd=ROOT)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_process_gets_no_more_than_it_may_take() -> None:
    assert limited(100 << 20) == [[True, False], False]
    assert limited(None) == [[True, True], True]


def test_what_a_process_takes_for_itself_is_counted() -> None:
    before = own_bytes()
    # Not by malloc, which may have so much left.
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as taken:
        for _ in range(64):
            taken.write(b"x" * (1 << 20))
        assert (60 << 20) < own_bytes() - before < (80 << 20)
