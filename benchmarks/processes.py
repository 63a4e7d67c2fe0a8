"""Processes that the benchmarks start, pin to a core, watch and end."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec

from genkidama.errors import GenkidamaError
from genkidama.runtime.log import fail
from genkidama.runtime.machine import end_with_parent

ROOT = Path(__file__).resolve().parents[1]

#: What must happen happens within this time, even on a machine that does much else.
PATIENCE = 30.0

#: The interpreter of the peers' own environment.
PEERS = ROOT / "benchmarks" / ".venv" / "bin" / "python"

P = ParamSpec("P")

_TICKS = os.sysconf("SC_CLK_TCK")


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """The parser of a benchmark; its help is the text of the module."""
    kind = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=text, formatter_class=kind)


def command(main: Callable[P, int]) -> Callable[P, int]:
    """Decorates a benchmark's `main`: a user's error is one line, and Ctrl-C and SIGTERM end it.

    SIGTERM ends what it has started, too. It ends in silence where nobody reads it any more.
    """

    @functools.wraps(main)
    def run(*arguments: P.args, **named: P.kwargs) -> int:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            code = main(*arguments, **named)
            sys.stdout.flush()
            return code
        except GenkidamaError as error:
            return fail(error)
        except KeyboardInterrupt:
            return 130
        except BrokenPipeError:  # the reader of our output has gone, as `| head` does
            sys.stderr.close()
            return 1

    return run


def start(command: Sequence[str], log: Path, cpu: int | None = None) -> subprocess.Popen[bytes]:
    """Starts a process in a session of its own, pinned to `cpu` from its first instruction on.

    It ends with this one, also if that is killed.
    """
    starter = os.getpid()

    def begin() -> None:
        end_with_parent(starter)
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})

    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=begin,
        )


def start_parent(
    experiment: Path,
    out: Path,
    port: int,
    cpu: int | None = None,
    program: Sequence[str] = ("-m", "genkidama.parent"),
) -> subprocess.Popen[bytes]:
    """Starts a Parent on loopback and waits until it listens. Its log is beside `out`."""
    log = out.with_suffix(".log")
    own = [*program, str(experiment), "--listen", f"127.0.0.1:{port}"]
    process = start([sys.executable, *own, "--out", str(out)], log, cpu)
    wait_for_port(process, port, log)
    return process


def interpreter_of_peers() -> str:
    """The interpreter that has the peers.

    Raises:
        SystemExit: there is none.
    """
    if not PEERS.exists():
        raise SystemExit(f"{PEERS}: the peers are not installed: make peers")
    return str(PEERS)


def pinned(core: int | None) -> list[str]:
    """The beginning of a command that has one core, if there is one."""
    return [] if core is None else ["taskset", "--cpu-list", str(core)]


def peer(script: str, *arguments: str, core: int | None = None) -> dict[str, Any]:
    """The row that a script of `peers/` prints last."""
    command = [interpreter_of_peers(), str(ROOT / "benchmarks" / "peers" / script), *arguments]
    done = subprocess.run(
        [*pinned(core), *command],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=end_with_parent,
    )
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def wait_for_port(
    process: subprocess.Popen[bytes], port: int, log: Path, seconds: float = 30.0
) -> None:
    """Returns once the process accepts connections.

    Raises:
        SystemExit: it ended, or did not listen in time; with what it logged.
    """
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return
        except OSError:
            time.sleep(0.05)
    stop(process)
    raise SystemExit(f"nothing listens on port {port}:\n{log.read_text(errors='replace')[-2000:]}")


def stop(process: subprocess.Popen[bytes], seconds: float = 20.0) -> None:
    """Asks the process to end, and insists after a while."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """A port on loopback that nobody is using now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads, also the ended ones, in seconds.

    It counts in clock ticks of 10 ms.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def family(pid: int) -> dict[int, list[str]]:
    """A process, its descendants and its session, by number: proc(5)'s `stat` from the state on."""
    members: dict[int, list[str]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            members[int(file.parent.name)] = file.read_text().rpartition(")")[2].split()
    found = {each for each, fields in members.items() if pid in (each, int(fields[3]))}
    while more := {each for each, fields in members.items() if int(fields[1]) in found} - found:
        found |= more
    return {each: members[each] for each in sorted(found)}


def family_seconds(pid: int) -> float:
    """CPU seconds of a process' family, and of its children that have ended."""
    return sum(sum(map(int, fields[11:15])) for fields in family(pid).values()) / _TICKS


def until(condition: Callable[[], Any], what: str = "", seconds: float = PATIENCE) -> Any:
    """What `condition` gives as soon as it is true; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what or condition}"
        time.sleep(0.02)
    return found


def history(run: Path, event: str = "") -> list[dict[str, Any]]:
    """The whole lines of a run's history, all or of one kind; none if there is no history yet."""
    try:
        text = (run / "history.jsonl").read_text()
    except FileNotFoundError:
        return []
    events = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return [line for line in events if event in ("", line["event"])]


def keep(path: Path | None, row: dict[str, Any], tree: Path = Path(__file__).parent) -> None:
    """Appends a row about a checkout to the file, if there is one, as studies do."""
    if path:
        sys.path.append(str(ROOT))  # a script finds only its neighbours
        from benchmarks import store

        store.append(path, {**store.origin(tree), **row})


def resident(pid: int) -> float:
    """Megabytes of memory that a process holds."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6
