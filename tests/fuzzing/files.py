"""Targets that read files: settings, checkpoints, and the history of a run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors
import safetensors.numpy

from genkidama.child.local_checkpoint import load_state
from genkidama.config.experiment import Experiment
from genkidama.config.role import Role
from genkidama.errors import ConfigurationError, GenkidamaError, ProtocolError
from genkidama.parent.checkpointer import Checkpointer
from genkidama.plugins.dashboard.run_browser import RecordedPage, RecordedRun
from genkidama.protocol.messages import PROTOCOL, Hello, Join, Push
from genkidama.runs import checkpoint as checkpoints
from genkidama.runs import sharded_checkpoint
from genkidama.runs.checkpoint import CheckpointFolder
from genkidama.runs.curves import columns, measured
from genkidama.runs.run import HISTORY, Run
from genkidama.server.events import KINDS, as_lines
from genkidama.server.parameter_server import ParameterServer, Snapshot
from tests.fuzzing.conversations import ENTRIES, SIGNATURE, VECTOR
from tests.fuzzing.mutation import (
    Target,
    mutated_json,
    mutated_text,
    mutated_tree,
    pack,
    unpack,
)
from tests.helpers import ROOT
from tests.parent.parents import Notes

_held: list[Any] = []


@cache
def _folder() -> Path:
    """A folder in memory, where there is such a place."""
    memory = Path("/dev/shm")
    _held.append(tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None))
    return Path(_held[0].name)


def settings(data: bytes) -> None:
    """A TOML file is settings or refused, and settings are written as they were read."""
    path = _folder() / "settings.toml"
    path.write_bytes(data)
    for kind in (Experiment, Role):
        with suppress(GenkidamaError):
            found = kind.load(path)
            if isinstance(found, Experiment):
                path.write_text(found.to_toml())
                assert Experiment.load(path).to_dict() == found.to_dict()


def _some_settings() -> list[bytes]:
    paths = [*ROOT.glob("examples/**/*.toml"), ROOT / "child" / "child.toml"]
    texts = [path.read_text() for path in paths if path.exists()]
    lines = ([line for line in text.splitlines() if line.strip(" #")] for text in texts)
    return ["\n".join(line for line in each if line[0] != "#").encode() for each in lines]


def _words_of_settings() -> tuple[str, ...]:
    tables = {name: each for name, each in Experiment().to_dict().items() if type(each) is dict}
    keys = sorted({f"\n{key} = " for table in tables.values() for key in table})
    names = [f"[{name}]\n" for name in (*tables, "plugins.x", "search", "search.space", "replay")]
    values = ("0", "-1", "1e400", "nan", "inf", "true", '""', '"a:b"', "[]", "{}", "[[x]]")
    return (*names, *keys, *values, "=", "\n", ".", '"', "'''", "9" * 5000, "1979-05-27")


# A checkpoint, as an input: metadata, tensors as name, type, shape, bytes; the checksum is made.


def _written(metadata: Any, tensors: Any) -> bytes:
    """A safetensors file with these contents, whatever they are."""
    header: dict[str, Any] = {"__metadata__": metadata}
    behind = b""
    for tensor in tensors if isinstance(tensors, list) else []:
        match tensor:
            case [str(name), kind, shape, bytes(content)]:
                place = [len(behind), len(behind) + len(content)]
                header[name] = {"dtype": kind, "shape": shape, "data_offsets": place}
                behind += content
    packed = msgspec.json.encode(header)
    packed += b" " * (-len(packed) % 8)
    return len(packed).to_bytes(8, "little") + packed + behind


def _with_checksum(path: Path, metadata: Any, tensors: Any) -> bytes:
    """The same file with the checksum that it needs, if it can be read as far as that."""
    path.write_bytes(_written(metadata, tensors))
    try:
        with safetensors.safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            found = file.metadata() or {}
        checksum = checkpoints._checksum(arrays, found)
    except Exception:  # whatever safetensors makes of it
        return _written(metadata, tensors)
    return _written({**found, "checksum": checksum}, tensors)


@contextmanager
def _run_with(data: bytes) -> Iterator[tuple[Path, Path]]:
    """A run's directory with this one checkpoint."""
    run = _folder() / "run"
    path = CheckpointFolder(run / "checkpoints").version_path(3)
    path.parent.mkdir(parents=True, exist_ok=True)
    match unpack(data):
        case [metadata, tensors]:
            try:
                path.write_bytes(_with_checksum(path, metadata, tensors))
            except (msgspec.EncodeError, TypeError, ValueError):
                path.write_bytes(data)
        case _:
            path.write_bytes(data)
    yield run, path
    path.unlink()


def checkpoint(data: bytes) -> None:
    """A checkpoint is read or refused, and a parent that resumes from it is as good as new."""
    with _run_with(data) as (run, path):
        load_state(path, msgspec.json.encode(SIGNATURE.entries).decode())
        with suppress(GenkidamaError):
            found = checkpoints.load(path)
            assert found.vector.shape == (found.signature.size,)
            assert np.isfinite(found.vector).all()
            _ = found.whole, found.part, sharded_checkpoint.load(path)
        for server in (ParameterServer(_resumed(average)) for average in (0.0, 0.5)):
            with suppress(GenkidamaError):
                if Checkpointer(server, run, Notes()).restore(0.0) is not None:
                    _go_on(server)


@cache
def _resumed(average: float) -> Experiment:
    return Experiment().with_settings({"parent.average": average, "parent.max_parameters": 64})


def _go_on(server: ParameterServer) -> None:
    """A child comes and pushes, and the next checkpoint can be made."""
    entries = [(name, list(shape)) for name, shape in (server.trial.signature or SIGNATURE).entries]
    server.handle("", Hello(protocol=PROTOCOL, name="a", session="s"), 1.0)
    server.handle("a", Join(signature=entries), 1.0)
    size = 0 if server.trial.signature is None else server.trial.signature.size
    push = Push(version=0, sequence=2**53, returns=[1.0], vector=np.ones(size, np.float32))
    with suppress(ProtocolError):
        server.handle("a", push, 1.0)
    assert as_lines(server.take_events())
    assert server.trial.is_sound(server.trials.rule)
    msgspec.json.encode(server.snapshot(1.0))


def _some_checkpoints() -> list[bytes]:
    path = _folder() / "checkpoint.safetensors"
    found = []
    counts: dict[str, Any] = {"exchanges": 3, "updates": 1.5, "episodes": 2, "steps": 9}
    for part, state in (("1/1", {}), ("2/3", {"momentum": np.ones(4, np.float32)})):
        snapshot = Snapshot(
            version=3,
            seconds=1.5,
            alpha=0.5,
            beta=0.5,
            returns=[1.0],
            mean_return=1.0,
            children={"a": {"exchanges": 3, "episodes": 2, "steps": 9}},
            sessions={"a": ("s", 3)},
            experiment={"seed": 3} if state else {},
            part=part,
            whole=[(name, tuple(shape)) for name, shape in ENTRIES] if state else [],
            **counts,
        )
        for extra in ({}, {"__trained__": VECTOR}, {"__trained__": VECTOR[:3]}):
            checkpoints.save(path, SIGNATURE, VECTOR, snapshot, {**state, **extra})
            with safetensors.safe_open(path, framework="np") as file:
                tensors = [
                    [name, "F32", list(array.shape), array.tobytes()]
                    for name in file.keys()  # noqa: SIM118
                    if (array := file.get_tensor(name)) is not None
                ]
                found.append(pack([file.metadata(), tensors]))
    return [*found, path.read_bytes()]


# The history.


def history(data: bytes) -> None:
    """All that reads a history reads this one, or says that it is damaged."""
    run = _recorded()
    (run / HISTORY).write_bytes(data)
    recorded = RecordedRun(run)
    page = RecordedPage(recorded)
    msgspec.json.decode(msgspec.json.encode(recorded.summary("./run/")))
    msgspec.json.decode(page.status())
    page.metrics()
    with suppress(ConfigurationError):
        columns(Run(run).history())
    with suppress(ConfigurationError):
        measured(Run(run).history(), ["loss"], "steps")
    with suppress(ConfigurationError):
        Run(run).status()


@cache
def _recorded() -> Path:
    run = _folder() / "recorded"
    run.mkdir()
    (run / "experiment.toml").write_text("[stop]\nsteps = 1000\n")
    return run


def _some_histories() -> list[bytes]:
    lines = [
        {"event": "start", "time": 1.0, "run": "r", "software": "1", "experiment": {}},
        {"event": "join", "time": 2.0, "child": "a", "version": 0, "parameters": 7},
        *(
            {
                "event": "exchange",
                "time": 2.0 + number,
                "child": "a",
                "version": number,
                "update": float(number),
                "staleness": 0,
                "episodes": number,
                "steps": 10 * number,
                "mean_return": 1.5,
                "distance": 0.1,
            }
            for number in (1, 2, 3)
        ),
        {"event": "measures", "time": 6, "backend": "b", "child": "a", "loss": 0.5, "samples": 0},
        {"event": "refused", "time": 6.5, "child": "a", "code": "finite", "reason": "NaN"},
        {"event": "leave", "time": 7.0, "child": "a", "reason": "left"},
        {"event": "stop", "time": 8.0, "reason": "over", "version": 3},
    ]
    packed = [msgspec.json.encode(line) for line in lines]
    return [
        b'{"event":{}}\n',
        b"".join(line + b"\n" for line in packed),
        *(line + b"\n" for line in packed),
    ]


_FIELDS_OF_EVENTS = tuple(
    sorted({*KINDS, *(name for kind in KINDS.values() for name in kind.__struct_fields__)})
)

TARGETS = {
    "settings": Target(settings, mutated_text, _some_settings, _words_of_settings()),
    "checkpoint": Target(
        checkpoint,
        mutated_tree,
        _some_checkpoints,
        ("F16", "BF16", "F64", "I8", "BOOL", "1/1", "[]"),
    ),
    "history": Target(history, mutated_json, _some_histories, _FIELDS_OF_EVENTS),
}
