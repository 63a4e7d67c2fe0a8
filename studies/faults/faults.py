"""Faults, each as a function that makes a run, spoils it at a stage, and sees it to its end."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
from websockets.exceptions import WebSocketException

from benchmarks.fake_child import FakeChild
from benchmarks.groups import Group
from benchmarks.processes import free_port
from genkidama.config.experiment import Experiment
from genkidama.protocol.messages import Refusal, Reply, Weights
from genkidama.protocol.vector import DTYPE, Signature, Vector
from genkidama.runs.run import Run
from studies.faults.checks import check
from studies.faults.shelf import (
    PATIENCE,
    SEARCH,
    SETTINGS,
    TRAIN,
    Program,
    Shelf,
    experiment,
    fill,
)
from studies.scaling.links import Network
from studies.scaling.matrix import Link

#: How a run has come to its end: by itself; by the same command with --resume; or from its
#: beginning, since there was no checkpoint yet; with an error of the user's. Or what the fault was
#: meant for had gone.
OUTCOMES = ("went on", "resumed", "began anew", "refused", "too late")

#: The module of the environment that goes wrong, as a child may import it.
FAULTY = "studies.faults.faulty"

Play = Callable[[Shelf, str], str]


@dataclass(frozen=True)
class Fault:
    """A row of the table.

    Args:
        name: what goes wrong.
        stages: at which stages of the run.
        times: how often at each.
        play: the trial, which returns one of `OUTCOMES`.
        seconds: that a trial takes, about.
    """

    name: str
    stages: tuple[str, ...]
    times: int
    play: Play
    seconds: float = 12.0


def code_of(shelf: Shelf, process: Program) -> int:
    """The exit code; −1 of a process that does not end, which is noted."""
    try:
        return process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        shelf.broken.append(f"does not end: {process.words[0]}")
        return -1


def conclude(shelf: Shelf, first: Program, killed: bool = False) -> str:
    """Sees a command of the user's to its end, has him resume it if need be, and checks all."""
    code = code_of(shelf, first)
    _plain(shelf, first, code, killed)
    shelf.vanish("the end")
    outcome = resume(shelf) if code else "went on"
    shelf.broken += check(shelf)
    return outcome


def _plain(shelf: Shelf, process: Program, code: int, killed: bool = False) -> None:
    """Whoever ends without success says why, in a line."""
    last = (process.err.strip().splitlines() or [""])[-1]
    if code and not killed and "error: " not in last:
        shelf.broken.append(f"ended with {code} and without a word: {last[:100]!r}")


def resume(shelf: Shelf) -> str:
    """What a person does after the end of a run that was not its own."""
    searches = (shelf.folder / "cart.toml").exists()
    command, file = (SEARCH, "cart.toml") if searches else (TRAIN, "e.toml")
    if (shelf.run / "experiment.toml").exists():
        words = (*command, "--resume", shelf.run)
    else:
        words = (*command, file, "--out", shelf.run)
    if FAULTY in (shelf.folder / ("cart.toml" if searches else "e.toml")).read_text():
        words = (*words, "--allow", FAULTY)
    before, kept = shelf.said("resume"), any(shelf.run.glob("**/version-*.safetensors"))
    process = shelf.start(*words)
    code = code_of(shelf, process)
    again = "resumed" if shelf.said("resume") > before else "began anew"
    if kept and " is finished: " in process.err:
        again = "went on"  # it had come to its end, and lacked nothing
        for partial in shelf.run.glob("checkpoints/.*.tmp"):  # whoever writes there would
            partial.unlink()
    elif kept and again == "began anew":
        shelf.broken.append("began anew though there was a checkpoint")
    if code:
        last = (process.err.strip().splitlines() or [""])[-1]
        shelf.broken.append(f"{again}: ended with {code}: {last}")
    shelf.vanish("the end of what was resumed")
    return again


def too_late(shelf: Shelf, first: Program) -> str:
    """There was nothing left to spoil."""
    conclude(shelf, first)
    return "too late"


# Processes that are killed.


def killing(kind: str, **sections: dict[str, Any]) -> Play:
    def play(shelf: Shelf, stage: str) -> str:
        first = shelf.train(experiment(**sections))
        shelf.reach(stage, kind)
        met = shelf.send(kind, signal.SIGKILL)
        return conclude(shelf, first, kind == "launcher") if met else too_late(shelf, first)

    return play


def killing_in_search(kind: str) -> Play:
    def play(shelf: Shelf, stage: str) -> str:
        first = search(shelf)
        shelf.reach(stage, kind)
        met = shelf.send(kind, signal.SIGKILL)
        return conclude(shelf, first, kind == "launcher") if met else too_late(shelf, first)

    return play


def search(shelf: Shelf) -> Program:
    plan = {
        "trials": 4,
        "phases": 2,
        "phase_steps": 600,
        "eviction_rate": 0.5,
        "space": {"optimizer": {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}},
    }
    settings = Experiment.from_dict(
        SETTINGS | {"network": {"hidden": [8]}, "parent": {}, "stop": {}, "search": plan}
    )
    (shelf.folder / "cart.toml").write_text(settings.to_toml())
    return shelf.start(*SEARCH, "cart.toml", "--out", shelf.run)


def nothing(shelf: Shelf, stage: str) -> str:
    return conclude(shelf, shelf.train())


def power_cut(shelf: Shelf, stage: str) -> str:
    """Everything stops at once. What was not flushed to the disk is not there afterwards."""
    shelf.format_disk()
    first = shelf.train()
    shelf.reach(stage)
    shelf.cut_disk()
    shelf.kill_all()
    shelf.mount_disk()
    return conclude(shelf, first, killed=True)


# Processes that stand still.


def lasting(seconds: float, **parent: Any) -> Experiment:
    """A run that lasts so long and hardly computes: ten steps a second."""
    return experiment(
        environment={"id": f"{FAULTY}:Faulty", "options": {"fault": "slow"}},
        stop={"steps": 1_000_000, "seconds": seconds},
        parent=parent,
    )


def stopping(kind: str, seconds: float) -> Play:
    def play(shelf: Shelf, stage: str) -> str:
        first = shelf.train(lasting(seconds + 10.0))
        shelf.reach(stage)
        met = shelf.send(kind, signal.SIGSTOP)
        time.sleep(seconds)
        if met is not None:
            with suppress(psutil.Error):  # its parent has replaced it
                met.resume()
        return conclude(shelf, first) if met else too_late(shelf, first)

    return play


# Disks.


def full(shelf: Shelf, stage: str) -> str:
    """Full for three seconds; then there is room again."""
    shelf.small_disk()
    first = shelf.train(experiment(stop={"steps": 16_000}))
    shelf.reach(stage)
    fill(shelf.disk)
    time.sleep(3.0)
    (shelf.disk / "filler").unlink()
    return conclude(shelf, first)


def full_for_good(shelf: Shelf, stage: str) -> str:
    """Full until the run has ended."""
    shelf.small_disk()
    first = shelf.train()
    shelf.reach(stage)
    fill(shelf.disk)
    first.wait(PATIENCE)
    (shelf.disk / "filler").unlink()
    return conclude(shelf, first)


def read_only(shelf: Shelf, stage: str) -> str:
    """Read-only until the run has ended; then it is mounted anew."""
    shelf.format_disk()
    first = shelf.train()
    shelf.reach(stage)
    shelf.protect_disk()
    return _mounted_anew(shelf, first)


def pulled(shelf: Shelf, stage: str) -> str:
    """An input/output error for each access, until the run has ended; then it is plugged in."""
    shelf.format_disk()
    first = shelf.train()
    shelf.reach(stage)
    shelf.cut_disk()
    return _mounted_anew(shelf, first)


def _mounted_anew(shelf: Shelf, first: Program) -> str:
    code_of(shelf, first)
    shelf.vanish("the end of a run without a disk")
    shelf.mount_disk()
    return conclude(shelf, first)


def deleted(shelf: Shelf, stage: str) -> str:
    """The directory of the run is deleted."""
    first = shelf.train(experiment(stop={"steps": 16_000}))
    shelf.reach(stage)
    gone = shelf.folder / "gone"
    os.rename(shelf.run, gone)
    shutil.rmtree(gone)
    return conclude(shelf, first)


def slow(shelf: Shelf, stage: str) -> str:
    """Each fsync takes a second more."""
    first = shelf.train()
    shelf.reach(stage)
    shelf.set(fsync=1000)
    return conclude(shelf, first)


# Clocks.


def clock(seconds: int) -> Play:
    def play(shelf: Shelf, stage: str) -> str:
        first = shelf.train()
        shelf.reach(stage)
        shelf.set(clock=seconds)
        return conclude(shelf, first)

    return play


# Environments.


def environment(fault: str, where: str) -> Play:
    """A user's environment that goes wrong after three episodes, in each process and for ever."""

    def play(shelf: Shelf, stage: str) -> str:
        options = {"fault": fault, "where": where, "after": 3}
        settings = experiment(
            environment={"id": f"{FAULTY}:Faulty", "options": options},
            child={"hang_seconds": 2.0},
            stop={"steps": 400, "seconds": 12.0},
        )
        # What leaks takes this group's memory, and not the machine's.
        group = Group(f"faults-{os.getpid()}-{shelf.folder.name}", 600 << 20)
        try:
            return _spoilt(shelf, settings, group)
        finally:
            group.close()

    return play


def _spoilt(shelf: Shelf, settings: Experiment, group: Group) -> str:
    first = shelf.train(settings, group=group)
    code = code_of(shelf, first)
    _plain(shelf, first, code)
    shelf.vanish("the end")
    shelf.broken += check(shelf, traceback="faults/faulty.py")  # of the user's own code
    return "refused" if code else "went on"


# A parent and two children that are programs of their own.


def apart(
    shelf: Shelf,
    network: Network | None = None,
    children: int = 2,
    settings: Experiment | None = None,
) -> tuple[Program, list[Program]]:
    """Starts them as on machines of their own."""
    (shelf.folder / "e.toml").write_text((settings or experiment()).to_toml())
    port = free_port()
    host = "127.0.0.1" if network is None else "0.0.0.0"
    parent = shelf.start(
        *("genkidama.parent", "e.toml", "--out", shelf.run, "--listen", f"{host}:{port}"),
        *("--set", "parent.open=true"),
        namespace="" if network is None else network.namespaces[0],
    )
    shelf.until(lambda: shelf.said("start"), "a parent")
    members = []
    for number in range(children):
        host = "127.0.0.1" if network is None else network.parents_address(number)
        members.append(
            shelf.start(
                *("genkidama.child", "--parent", f"ws://{host}:{port}", "--name", f"pi-{number}"),
                *("--allow", "*", "--cores", 1),
                namespace="" if network is None else network.namespaces[1 + number],
            )
        )
    return parent, members


def conclude_apart(
    shelf: Shelf, parent: Program, children: list[Program], lost: tuple[Program, ...] = ()
) -> str:
    """Waits for the end of all; the lost ones only have to end when they are told to."""
    for each in (parent, *children):
        if each in lost:
            each.signal(signal.SIGTERM)
        if code := code_of(shelf, each):
            last = (each.err.strip().splitlines() or [""])[-1]
            shelf.broken.append(f"ended with {code}: {last[:100]!r}")
    shelf.vanish("the end")
    shelf.broken += check(shelf)
    return "went on"


def link(megabits: float = 100.0, delay_ms: float = 1.0, loss: float = 0.0) -> Play:
    """Links that are so all the time."""

    def play(shelf: Shelf, stage: str) -> str:
        seed, kind = shelf.luck.randrange(1 << 30), Link(megabits, delay_ms, loss)
        with Network(2, kind, seed, name=shelf.folder.name) as network:
            return conclude_apart(shelf, *apart(shelf, network))

    return play


def link_down(seconds: float) -> Play:
    """Nothing passes the link of one of two children for so long; for ever with infinity."""

    def play(shelf: Shelf, stage: str) -> str:
        with Network(2, Link(100.0, 1.0, 0.0), 1, name=shelf.folder.name) as network:
            settings = lasting(
                (seconds if seconds < float("inf") else 5.0) + 10.0, silence_seconds=5.0
            )
            parent, children = apart(shelf, network, settings=settings)
            shelf.reach(stage)
            network.cut([0])
            if seconds < float("inf"):
                time.sleep(seconds)
                network.cut([])
                return conclude_apart(shelf, parent, children)
            return conclude_apart(shelf, parent, children, lost=(children[0],))

    return play


def half_open(who: str) -> Play:
    """The child, or the parent, is killed behind a cut link, and comes back: the other end has a
    connection to nobody."""

    def play(shelf: Shelf, stage: str) -> str:
        with Network(2, Link(100.0, 1.0, 0.0), 1, name=shelf.folder.name) as network:
            settings = experiment(parent={"silence_seconds": 5.0}, stop={"steps": 16_000})
            parent, children = apart(shelf, network, settings=settings)
            shelf.reach(stage)
            network.cut([0, 1])
            victim = children[0] if who == "child" else parent
            for each in victim.family():
                with suppress(psutil.Error):
                    each.kill()
            victim.popen.wait()
            network.cut([])
            again = shelf.start(*victim.words, namespace=network.namespaces[who == "child"])
            if who == "child":
                children[0] = again
            else:
                parent = again
            return conclude_apart(shelf, parent, children)

    return play


def little_memory(megabytes: int) -> Play:
    """A third child comes to a machine with so much memory; the kernel kills what takes more."""

    def play(shelf: Shelf, stage: str) -> str:
        group = Group(f"faults-{os.getpid()}-{shelf.folder.name}", megabytes << 20)
        try:
            parent, children = apart(shelf)
            shelf.reach(stage)
            port = children[0].words[2].rpartition(":")[2]
            small_one = shelf.start(
                *("genkidama.child", "--parent", f"ws://127.0.0.1:{port}", "--name", "small"),
                *("--allow", "*", "--cores", 1),
                group=group,
            )
            parent.wait(PATIENCE)
            if (code := code_of(shelf, small_one)) > 0:
                _plain(shelf, small_one, code)
            return conclude_apart(shelf, parent, children)
        finally:
            group.close()

    return play


def crowd(shelf: Shelf, stage: str) -> str:
    """A hundred children say hello within a second, join and push ten times each."""
    parent, children = apart(shelf, settings=experiment(stop={"steps": 30_000}))
    shelf.reach(stage)
    port = int(children[0].words[2].rpartition(":")[2])
    shelf.broken += asyncio.run(_come(port, 100, Run(shelf.run).load().signature))
    return conclude_apart(shelf, parent, children)


async def _come(port: int, count: int, signature: Signature) -> list[str]:
    """What goes wrong for so many children that come within a second and push ten times each."""

    async def child(number: int) -> str:
        await asyncio.sleep(number / count)
        name = f"visitor-{number}"
        try:
            async with FakeChild(("127.0.0.1", port), name, name, signature) as visitor:
                reply: Reply = await visitor.enter()
                vector: Vector = np.zeros(signature.size, DTYPE)
                for _ in range(10):
                    if isinstance(reply, Weights) and reply.vector is not None:
                        vector = reply.vector
                    reply = await visitor.push(vector)
                    if isinstance(reply, Refusal):
                        return f"{name} is refused: {reply.reason}"
                await visitor.leave("seen enough")
        except (OSError, WebSocketException, AssertionError) as error:
            return f"{name}: {type(error).__name__}: {error}"
        return ""

    return [problem for problem in await asyncio.gather(*map(child, range(count))) if problem]


STAGES = ("start", "joining", "training", "checkpoint", "ending")
EXPERIENCE: dict[str, Any] = {
    "algorithm": {"name": "ppo", "minibatch_size": 64, "batch_size": 128},
    "environment": {"lanes": 4},
    "parent": {"rule": "experience", "rule_options": {"batch": 256}},
}
_TRAINING = ("training",)

FAULTS = [
    Fault("nothing", ("–",), 3, nothing, 8.0),
    *(
        Fault(f"kill -9 of {name}", STAGES, 6, killing(kind))
        for kind, name in (
            ("launcher", "`genkidama train`"),
            ("forkserver", "the forkserver"),
            ("parent", "the parent"),
            ("child", "a child"),
            ("core", "a core"),
        )
    ),
    Fault("kill -9 of the learner", STAGES, 3, killing("learner", **EXPERIENCE)),
    *(
        Fault(f"search: kill -9 of {name}", ("start", "training"), 2, killing_in_search(kind), 25.0)
        for kind, name in (
            ("launcher", "`genkidama search`"),
            ("parent", "the parent"),
            ("child", "a node"),
        )
    ),
    Fault("power cut of everything", STAGES, 6, power_cut, 15.0),
    Fault("disk full for 3 s", _TRAINING, 4, full, 15.0),
    Fault("disk full for good", _TRAINING, 4, full_for_good, 15.0),
    Fault("disk read-only", _TRAINING, 4, read_only, 15.0),
    Fault("disk gone (I/O errors)", _TRAINING, 4, pulled, 15.0),
    Fault("run directory deleted", _TRAINING, 4, deleted, 15.0),
    Fault("disk slow: fsync + 1 s", _TRAINING, 3, slow, 15.0),
    Fault("child with 48 MB of memory", _TRAINING, 2, little_memory(48), 20.0),
    Fault("child with 72 MB of memory", _TRAINING, 2, little_memory(72), 20.0),
    Fault("child with 96 MB of memory", _TRAINING, 2, little_memory(96), 20.0),
    *(
        Fault(
            f"SIGSTOP of {name} for {seconds:g} s",
            _TRAINING,
            times,
            stopping(kind, seconds),
            12 + seconds,
        )
        for seconds, times in ((3.0, 3), (60.0, 2))
        for kind, name in (
            ("parent", "the parent"),
            ("child", "a child"),
            ("core", "a core"),
            ("forkserver", "the forkserver"),
        )
    ),
    Fault("clock an hour back", _TRAINING, 4, clock(-3600)),
    Fault("clock an hour ahead", _TRAINING, 4, clock(3600)),
    *(
        Fault(f"environment {words} in `{where}`", ("–",), 2, environment(fault, where), 20.0)
        for where in ("reset", "step")
        for fault, words in (
            ("raise", "raises"),
            ("sleep", "hangs"),
            ("leak", "leaks"),
            ("segfault", "segfaults"),
            ("nan", "gives NaN"),
        )
    ),
    Fault("a link down for 1 s", _TRAINING, 4, link_down(1.0), 15.0),
    Fault("a link down for 60 s", _TRAINING, 2, link_down(60.0), 75.0),
    Fault("a link down for ever", _TRAINING, 2, link_down(float("inf")), 25.0),
    Fault("half-open: a child comes back", _TRAINING, 3, half_open("child"), 20.0),
    Fault("half-open: the parent comes back", _TRAINING, 3, half_open("parent"), 20.0),
    Fault("links of 50 ms", ("–",), 2, link(delay_ms=50.0), 15.0),
    Fault("links of 500 ms", ("–",), 2, link(delay_ms=500.0), 20.0),
    Fault("links that lose 1 %", ("–",), 2, link(delay_ms=10.0, loss=0.01), 15.0),
    Fault("links that lose 5 %", ("–",), 2, link(delay_ms=10.0, loss=0.05), 20.0),
    Fault("links that lose 20 %", ("–",), 2, link(delay_ms=10.0, loss=0.2), 40.0),
    Fault("links of 1 Mbit/s", ("–",), 2, link(megabits=1.0), 20.0),
    Fault("a hundred children within a second", _TRAINING, 3, crowd, 20.0),
]
