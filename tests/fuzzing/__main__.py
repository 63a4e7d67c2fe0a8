"""`python -m tests.fuzzing [TARGET ...] [--runs N] [--seconds S]`: Atheris on each of the targets.

At the first input of a target that fails it stops, makes the input small, and prints it with the
line that plays it again. `--keep` puts what was found to be interesting into `corpus/`.
"""

from __future__ import annotations

import argparse
import base64
import importlib.util
import logging
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from tests.fuzzing.mutation import shortened

if TYPE_CHECKING:
    from tests.fuzzing.mutation import Target

#: This module imports nothing of Genkidama's: Atheris looks into what is imported after it.
ROOT = Path(__file__).resolve().parents[2]

#: Inputs that were found, of all targets; git does not see them.
_FOUND = ROOT / "build" / "fuzzing"

#: The longest input, and what is kept of a target in git, in bytes.
_LONGEST, _KEPT = 4096, 10_000

#: Nothing that is read takes so long, or so much memory.
_SECONDS, _MEBIBYTES = 10, 2048


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.fuzzing", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all without one")
    parser.add_argument("--runs", type=int, default=10_000_000, help="inputs of each target")
    parser.add_argument("--seconds", type=int, default=60, help="time of each target")
    parser.add_argument("--keep", action="store_true", help="update tests/fuzzing/corpus")
    parser.add_argument("--input", metavar="BASE64", help="play one input of one target")
    parser.add_argument("--inside", help=argparse.SUPPRESS)  # the process that Atheris runs in
    return parser.parse_args()


def main() -> int:
    options = _options()
    if options.inside:
        _fuzz(options.inside, options.targets)
    from tests.fuzzing.targets import TARGETS

    names = options.targets or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        print(f"{unknown[0]!r}: no such target; there are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    if options.input is not None:
        TARGETS[names[0]].run(base64.b64decode(options.input))
        return 0
    if importlib.util.find_spec("atheris") is None:
        print("there is no Atheris here: .venv/bin/python -m pip install atheris", file=sys.stderr)
        return 2
    failed = [name for name in names if not _hunt(name, options.runs, options.seconds)]
    if options.keep:
        _keep([name for name in names if name not in failed])
    return bool(failed)


def _hunt(name: str, runs: int, seconds: int) -> bool:
    """Fuzzes one target in a process of its own; false if an input fails."""
    from tests.fuzzing import corpus
    from tests.fuzzing.targets import TARGETS

    folder = _FOUND / name
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        seeds = Path(place, "seeds")
        seeds.mkdir()
        for number, data in enumerate([*corpus.load(name), *TARGETS[name].seeds()]):
            (seeds / str(number)).write_bytes(data)
        command = [
            *(sys.executable, "-m", "tests.fuzzing", f"--inside={name}", "--", str(folder)),
            *(str(seeds), f"-runs={runs}", f"-max_total_time={seconds}", f"-max_len={_LONGEST}"),
            *(f"-artifact_prefix={place}/", f"-timeout={_SECONDS}"),
            *(f"-rss_limit_mb={_MEBIBYTES}", "-print_final_stats=1"),
        ]
        code, said = _follow(name, command)
        broken = [path.read_bytes() for path in Path(place).iterdir() if path.is_file()]
    if code and not broken:
        raise SystemExit(f"{said}\n{name}: the fuzzer ended with {code}")
    for data in broken:
        _report(name, TARGETS[name].run, data, said)
    return not broken


def _follow(name: str, command: list[str]) -> tuple[int, str]:
    """Shows how far a process has come; returns its exit code, and the last that it said."""
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    last, shown, lines = f"{name}: starts", time.monotonic(), []
    for line in process.stderr:
        lines = [*lines[-40:], line]
        if found := re.match(r"#(\d+)\s.*cov: (\d+)", line):
            last = f"{name}: {int(found[1]):,} inputs, {found[2]} places"
        if found := re.match(r"stat::number_of_executed_units: (\d+)", line):
            last = f"{name}: {int(found[1]):,} inputs" + last[last.rfind(",") :]
        if time.monotonic() > shown + 5:
            print(last, flush=True)
            shown = time.monotonic()
    code = process.wait()
    print(last, flush=True)
    return code, "".join(lines)


def _fuzz(name: str, arguments: list[str]) -> None:
    """Never returns."""
    import atheris

    with atheris.instrument_imports(include=["genkidama"]):
        from tests.fuzzing.targets import TARGETS
    target = TARGETS[name]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    warnings.simplefilter("error", RuntimeWarning)  # as in the tests

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        found = mutated(target, data, rng) if rng.random() < 0.7 else data
        return found if found != data and len(found) <= most else bytes(atheris.Mutate(data, most))

    atheris.Setup([sys.argv[0], *arguments], target.run, custom_mutator=mutate)
    atheris.Fuzz()


def mutated(target: Target, data: bytes, rng: random.Random) -> bytes:
    """An input like this one, or the same if it cannot be changed."""
    with suppress(TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        return target.mutate(data, rng, target.words)
    return data


def _report(name: str, run: Callable[[bytes], None], data: bytes, said: str) -> None:
    kind = failure(run, data)
    if kind is None:  # too long, or too much memory, or only after others
        print(said)
    else:
        data = minimized(run, data, kind)
        with_trace = traceback.format_exception(_raised(run, data))
        print("".join(with_trace))
    print(f"{name}: fails at {data!r}; play it again:")
    print(f"  python -m tests.fuzzing {name} --input {base64.b64encode(data).decode() or repr('')}")


def _raised(run: Callable[[bytes], None], data: bytes) -> Exception | None:
    try:
        run(data)
    except Exception as error:
        return error
    return None


def failure(run: Callable[[bytes], None], data: bytes) -> tuple[type, str, int] | None:
    """The kind of a failure: its type, and where it was raised; None if there is none."""
    error = _raised(run, data)
    if error is None:
        return None
    place = traceback.extract_tb(error.__traceback__)[-1]
    return type(error), place.filename, place.lineno or 0


def minimized(run: Callable[[bytes], None], data: bytes, kind: tuple[type, str, int]) -> bytes:
    """A short input with this failure, of which nothing more can be left out."""
    while True:
        for shorter in shortened(data):
            if len(shorter) < len(data) and failure(run, shorter) == kind:
                data = shorter
                break
        else:
            return data


def _keep(names: list[str]) -> None:
    from tests.fuzzing import corpus
    from tests.fuzzing.targets import TARGETS

    for name in names:
        found = [path.read_bytes() for path in (_FOUND / name).iterdir()]
        inputs = [*corpus.load(name), *TARGETS[name].seeds(), *found]
        corpus.store(name, corpus.smallest(TARGETS[name].run, inputs, _KEPT))


if __name__ == "__main__":
    sys.exit(main())
