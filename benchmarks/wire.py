"""What the encodings save on the wire, and what they cost.

Claim: with `parent.encoding = "int4"` an exchange takes at most an eighth of float32's bytes. Over
a Wi-Fi link of 20 Mbit/s with 20 ms and 1 % loss, a free child of 250,000 numbers that exchanges
once a second then trains and exchanges within 15 % of what it does on loopback.

Method: `exchanges` starts a real Parent for each encoding, and one child that exchanges as fast as
it is answered. The child is a real `Session` on a websocket; between two pushes it adds noise to
its weights instead of learning, which no encoding finds a pattern in. Bytes are those of the two
messages. `parent µs` and `child µs` are CPU time an exchange of each process, kernel included.
`loopback` and `link` take turns, and so do the encodings; figures are medians over the rounds.

`train` starts a real Parent and a real child that trains LunarLander with one core, and counts what
the Parent's history has in a window: exchanges a second, and environment steps a second of the
child's CPU time, which other programs on the machine change little.

`learn` trains `examples/lunarlander/lunarlander.toml` on this machine with two children, an
exchange every 4,096 steps and a constant learning rate, until the training mean is 200, and prints
how many environment steps that took. Steps, unlike seconds, do not depend on how busy the machine
is.

The link is `benchmarks/link.py`: two network namespaces and a process that delays, drops and
limits. That takes root.

    python benchmarks/wire.py exchanges                  five minutes
    python benchmarks/wire.py train                      ten minutes
    python benchmarks/wire.py learn --seeds 1 2 3        half an hour
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from link import Air, Place, link
from processes import (
    ROOT,
    cpu_seconds,
    family_seconds,
    free_port,
    history,
    keep,
    parser_of,
    start,
    stop,
)
from websockets.sync.client import connect

from genkidama.protocol.messages import Request, decode_reply, encode
from genkidama.protocol.session import BlendReply, Session
from genkidama.protocol.vector import DTYPE, Signature

LUNARLANDER = ROOT / "examples" / "lunarlander" / "lunarlander.toml"
ENCODINGS = ("float32", "float16", "int8", "int4")

#: Loopback, as a link that needs no namespace.
HERE = Place("", "127.0.0.1")


@contextlib.contextmanager
def parent(
    place: Place, settings: dict[str, Any], folder: Path
) -> Iterator[tuple[str, subprocess.Popen[bytes], Path]]:
    """A Parent that listens at a place: its address, its process and its run directory."""
    from genkidama.config.experiment import Experiment

    folder = Path(tempfile.mkdtemp(dir=folder))
    experiment = folder / "experiment.toml"
    experiment.write_text(Experiment.from_dict(settings).to_toml(), encoding="utf-8")
    address, out = f"{place.address}:{free_port()}", folder / "run"
    command = [sys.executable, "-m", "genkidama.parent", str(experiment)]
    command += ["--listen", address, "--out", str(out), "--set", "parent.open=true"]
    process = start([*place.enter, *command], folder / "parent.log")
    try:
        yield f"ws://{address}", process, out
    finally:
        stop(process)


# exchanges


def play(url: str, size: int, seconds: float, pid: int) -> dict[str, float]:
    """Exchanges with the parent for so many seconds; what that took, an exchange."""
    session = Session("player", "word", parent=url)
    noise = np.random.default_rng(0)
    weights = noise.normal(0.0, 0.1, size).astype(DTYPE)
    steps = noise.normal(0.0, 1e-3, (3, size)).astype(DTYPE)
    signature = Signature.of([("weights", [size])])
    bytes_said = 0
    with connect(url, compression=None, max_size=None, proxy=None, open_timeout=30) as socket:

        def say(request: Request) -> Any:
            nonlocal bytes_said
            said = encode(request)
            socket.send(said)
            heard = socket.recv()
            assert isinstance(heard, bytes)
            bytes_said += len(said) + len(heard)
            return session.receive(request, decode_reply(heard))

        def exchange(step: np.ndarray) -> None:
            nonlocal weights
            weights = weights + step
            decision = say(session.push(weights))
            assert isinstance(decision, BlendReply)
            assert decision.sent is not None
            assert decision.vector is not None
            weights = weights + (decision.vector - decision.sent) * DTYPE.type(0.5)

        say(session.hello())
        say(session.join(signature))
        for step in steps[:2]:  # the first push is whole
            exchange(step)
        bytes_said = count = 0
        begun, mine, theirs = time.monotonic(), time.process_time(), cpu_seconds(pid)
        while (elapsed := time.monotonic() - begun) < seconds:
            exchange(steps[count % len(steps)])
            count += 1
        mine, theirs = time.process_time() - mine, cpu_seconds(pid) - theirs
    return {
        "bytes": bytes_said / count,
        "rate": count / elapsed,
        "parent": theirs / count * 1e6,
        "child": mine / count * 1e6,
    }


def measure_exchanges(options: argparse.Namespace, places: dict[str, Place], folder: Path) -> None:
    print(
        f"{'numbers':>9} {'over':>8} {'encoding':>8} {'bytes':>11} {'of f32':>6} "
        f"{'/s':>8} {'of f32':>6} {'parent µs':>9} {'child µs':>9}"
    )
    for size in options.sizes:
        found: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
        rounds = itertools.product(range(options.rounds), places.items(), options.encodings)
        for _, (over, place), encoding in rounds:
            settings = {"parent": {"encoding": encoding}, "child": {"exchange": "free"}}
            with parent(place, settings, folder) as (url, process, _):
                child = options.near if place.namespace else HERE
                command = [sys.executable, __file__, "play", url, str(size)]
                command += [str(options.seconds), str(process.pid)]
                said = _until_it_listens([*child.enter, *command])
            found[over, encoding].append(figures := json.loads(said))
            row = {"numbers": size, "over": over, "encoding": encoding, **figures}
            keep(options.results, row)
        for (over, encoding), figures in found.items():
            median = {
                name: statistics.median(figure[name] for figure in figures) for name in figures[0]
            }
            exact = found.get((over, "float32"), figures)
            bytes_then = statistics.median(figure["bytes"] for figure in exact)
            rate_then = statistics.median(figure["rate"] for figure in exact)
            print(
                f"{size:>9,} {over:>8} {encoding:>8} {median['bytes']:>11,.0f} "
                f"{median['bytes'] / bytes_then:>6.3f} {median['rate']:>8,.2f} "
                f"{median['rate'] / rate_then:>6.2f} "
                f"{median['parent']:>9,.0f} {median['child']:>9,.0f}",
                flush=True,
            )


def _until_it_listens(command: list[str]) -> str:
    """What a player prints. The parent beside it needs a second before it listens."""
    for _ in range(60):
        done = subprocess.run(command, capture_output=True, text=True)
        if "ConnectionRefusedError" not in done.stderr:
            break
        time.sleep(0.2)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


# train


def measure_training(options: argparse.Namespace, places: dict[str, Place], folder: Path) -> None:
    """Real children with some 250,000 numbers; `of it` is the part of what loopback gives."""
    print(f"{'over':>8} {'encoding':>8} {'exchanges/s':>11} {'of it':>7} {'steps':>8} {'of it':>7}")
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for _ in range(options.rounds):
        for encoding, (over, place) in itertools.product(options.encodings, places.items()):
            settings = {
                "network": {"hidden": [350, 350]},
                "algorithm": {"batch_size": 512, "minibatch_size": 128},
                "parent": {"encoding": encoding},
                "child": {"exchange": "free", "exchange_seconds": 1.0},
            }
            with parent(place, settings, folder) as (url, _, out):
                child = options.near if place.namespace else HERE
                command = [sys.executable, "-m", "genkidama.child", "--parent", url]
                command += ["--name", "pi", "--cores", "1"]
                process = start([*child.enter, *command], out.parent / "child.log")
                try:
                    rates = _rates(out, options.seconds, process.pid)
                    found[over, encoding].append(rates)
                    exchanges, steps = rates
                    row = {"over": over, "encoding": encoding, "exchanges": exchanges}
                    keep(options.results, {**row, "steps": steps})
                finally:
                    stop(process)
    for (over, encoding), figures in sorted(found.items(), key=lambda entry: entry[0][::-1]):
        exchanges, steps = (statistics.median(column) for column in zip(*figures, strict=True))
        at_home = [
            statistics.median(column) for column in zip(*found["loopback", encoding], strict=True)
        ]
        print(
            f"{over:>8} {encoding:>8} {exchanges:>11.3f} {exchanges / at_home[0]:>7.2f} "
            f"{steps:>8,.0f} {steps / at_home[1]:>7.2f}",
            flush=True,
        )


def _rates(out: Path, seconds: float, pid: int) -> tuple[float, float]:
    """Exchanges a second, and steps a second of the child's CPU time, after the third exchange."""
    deadline = time.monotonic() + 120.0 + seconds
    begun: tuple[dict[str, Any], int, float] | None = None
    while time.monotonic() < deadline:
        time.sleep(0.2)
        events = history(out, "exchange")
        if begun is None and len(events) >= 3:
            begun = events[-1], len(events), family_seconds(pid)
        if begun is not None and events[-1]["time"] - begun[0]["time"] >= seconds:
            first, count, spent = begun
            wall = events[-1]["time"] - first["time"]
            steps = events[-1]["steps"] - first["steps"]
            return (len(events) - count) / wall, steps / (family_seconds(pid) - spent)
    raise SystemExit(f"the child has not exchanged for long enough: {out}")


# learn


def measure_learning(options: argparse.Namespace, folder: Path) -> None:
    print(f"{'seed':>4} {'encoding':>8} {'steps to 200':>12} {'updates':>7} {'mean':>6}")
    for seed, encoding in itertools.product(options.seeds, options.encodings):
        out = folder / f"{encoding}-{seed}"
        changes = {
            "parent.encoding": encoding,
            "stop.mean_return": 200,
            "stop.seconds": 600,
            "child.exchange_seconds": 0,
            "child.exchange_steps": 4096,
            "optimizer.schedule": "constant",
        }
        command = [sys.executable, "-m", "genkidama", "train", str(LUNARLANDER), "--children", "2"]
        command += ["--cores", "1", "--seed", str(seed), "--episodes", "0", "--out", str(out)]
        for key, value in changes.items():
            command += ["--set", f"{key}={value}"]
        subprocess.run(command, check=True, capture_output=True)
        last = history(out, "exchange")[-1]
        keep(options.results, {"seed": seed, "encoding": encoding, "steps": last["steps"]})
        print(
            f"{seed:>4} {encoding:>8} {last['steps']:>12,} {last['update']:>7.0f} "
            f"{last['mean_return']:>6.1f}",
            flush=True,
        )


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("what", choices=["exchanges", "train", "learn"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[3_000, 250_000, 4_000_000])
    parser.add_argument("--encodings", nargs="+", default=ENCODINGS, choices=ENCODINGS)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a measurement (default 5)")
    parser.add_argument("--rounds", type=int, default=3, help="of each measurement (default 3)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--megabits", type=float, default=20.0)
    parser.add_argument("--milliseconds", type=float, default=20.0, help="round trip")
    parser.add_argument("--loss", type=float, default=0.01)
    parser.add_argument("--results", type=Path, help="file to which rows are appended")
    parser.add_argument("--no-link", action="store_true", help="loopback alone")
    return parser.parse_args(arguments)


def main() -> None:
    if sys.argv[1:2] == ["play"]:
        url, size, seconds, pid = sys.argv[2:]
        print(json.dumps(play(url, int(size), float(seconds), int(pid))))
        return
    options = parse(sys.argv[1:])
    os.environ["PYTHONPATH"] = str(ROOT)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if options.what == "learn":
            measure_learning(options, folder)
            return
        places = {"loopback": HERE}
        if not options.no_link:
            air = Air(options.megabits, options.milliseconds, options.loss)
            options.near, places["link"] = stack.enter_context(link(air))
        measure = measure_exchanges if options.what == "exchanges" else measure_training
        measure(options, places, folder)


if __name__ == "__main__":
    main()
