"""`genkidama doctor --bench`: a machine's figures as one line of JSON, to compare boards by.

A child with all CPU cores trains LunarLander beside its parent, and then a parent answers a client
that learns nothing. All of it is on this machine, on loopback, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import json
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

from genkidama._version import __version__
from genkidama.child.health import hottest
from genkidama.errors import EnvironmentFailure
from genkidama.plugins.doctor.measurements import proportional_bytes
from genkidama.runtime.machine import available_cores

#: Of training, and exchanges.
_SECONDS, _EXCHANGES = 20.0, 300

#: Numbers of lunarlander.toml's network.
_NUMBERS = 9_797


def bench(seconds: float = _SECONDS, exchanges: int = _EXCHANGES) -> dict[str, Any]:
    """The figures of this machine.

    `steps_per_second` of all cores while they train; `exchange_ms`, the median; `memory_mb` of all
    processes of the training, the parent's and the learner's among them, at most (PSS, 10⁶ bytes;
    null if the system does not say); `celsius`, the highest while training (null where nothing
    measures it); and what was measured with.
    """
    cores = available_cores()
    with tempfile.TemporaryDirectory(prefix="genkidama-bench-") as folder:
        trained = _train(Path(folder), cores, seconds)
        exchange = _exchange(Path(folder), exchanges)
    software = {"genkidama": __version__, "python": platform.python_version()}
    machine = {"model": _model(), "system": platform.platform(), "cores": cores}
    return {**trained, "exchange_ms": round(1000 * exchange, 3), **machine, **software}


def _train(folder: Path, cores: int, seconds: float) -> dict[str, float | None]:
    command = [sys.executable, "-m", "genkidama", "train", "lunarlander", "--children", "1"]
    command += ["--cores", str(cores), "--set", f"stop.seconds={seconds:g}", "--episodes", "0"]
    memory, heat = 0, 0.0
    with _process([*command, "--json", "--out", "run"], folder) as process:
        while process.poll() is None:
            memory = max(memory, proportional_bytes({process.pid}))
            heat = max(heat, hottest())
            time.sleep(0.5)
    if process.returncode:
        raise _failure("the training", folder, process)
    told = json.loads((folder / f"{process.pid}.out").read_text())
    return {
        "steps_per_second": round(told["steps_per_second"], 1),
        "memory_mb": round(memory / 1e6, 1) or None,
        "celsius": round(heat, 1) or None,
    }


def _exchange(folder: Path, count: int) -> float:
    """Seconds from the beginning of a push to the end of its reply, the median."""
    (folder / "averages.toml").write_text("[child]\nexchange = 'free'\n")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listen = ["--listen", f"fd://{listening.fileno()}"]
        command = [sys.executable, "-m", "genkidama.parent", "averages.toml", *listen]
        with _process(command, folder, listening.fileno()) as process:
            try:
                return asyncio.run(_push(listening.getsockname()[1], count))
            except OSError as error:
                raise _failure("the parent", folder, process) from error


async def _push(port: int, count: int) -> float:
    import numpy as np

    from genkidama.child.transport import Transport
    from genkidama.protocol.messages import (
        PROTOCOL,
        Hello,
        Join,
        Push,
        Request,
        Weights,
        decode_reply,
        encode,
    )

    connection = await Transport(f"ws://127.0.0.1:{port}").open()

    async def ask(request: Request) -> Any:
        await connection.send(encode(request))
        frame = await connection.recv()
        assert isinstance(frame, bytes)
        return decode_reply(frame)

    await ask(Hello(protocol=PROTOCOL, name="bench", session="1"))
    reply = await ask(Join(signature=[("numbers", [_NUMBERS])]))
    taken = []
    for number in range(1, count + 1):
        assert isinstance(reply, Weights), reply
        vector = np.zeros(_NUMBERS, np.float32)
        began = time.perf_counter()
        reply = await ask(
            Push(version=reply.version, sequence=number, steps=1, returns=[], vector=vector)
        )
        taken.append(time.perf_counter() - began)
    await connection.close()
    return median(taken)


@contextmanager
def _process(
    command: list[str], folder: Path, *descriptors: int
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in `folder`; its output is in PID.out and PID.err there. It ends with the block."""
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=descriptors,
        )
    for name in ("out", "err"):
        (folder / name).rename(folder / f"{process.pid}.{name}")
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _failure(what: str, folder: Path, process: subprocess.Popen[bytes]) -> EnvironmentFailure:
    lines = (folder / f"{process.pid}.err").read_text(errors="replace").strip().splitlines()
    said = lines[-1] if lines else f"exit code {process.returncode}"
    return EnvironmentFailure(f"--bench: {what} fails: {said.removeprefix('error: ')}")


def _model() -> str:
    """The board's name, or the processor's."""
    with suppress(OSError):
        return Path("/proc/device-tree/model").read_text(errors="replace").rstrip("\0\n")
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        if names:
            return names[0]
    return platform.machine()
