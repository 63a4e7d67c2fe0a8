"""A child's own state: what is written comes back; whatever goes wrong, a whole file is there."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from genkidama.child import local_checkpoint
from genkidama.child.local_checkpoint import LocalCheckpoint, load_state, save_state
from genkidama.errors import EnvironmentFailure
from genkidama.protocol.vector import DTYPE
from tests.helpers import ConstantBackend, constant, eventually

OLD = {"weights": np.arange(3, dtype=DTYPE), "clock": np.array([7])}
NEW = {"weights": np.arange(3, dtype=DTYPE) + 1, "clock": np.array([8])}


def backend(first: float) -> ConstantBackend:
    experiment = constant(network={"options": {"first": first}})
    return ConstantBackend(experiment, cores=1, name="pi")


def assert_holds(path: Path, arrays: dict[str, Any]) -> None:
    found = load_state(path, "key")
    assert found is not None and found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_what_is_saved_is_loaded_by_the_same_key_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "pi.safetensors"
    assert load_state(path, "key") is None
    for arrays in (OLD, NEW):
        save_state(path, "key", arrays)
        assert_holds(path, arrays)
    assert load_state(path, "another key") is None
    assert_holds(path, NEW)
    assert os.listdir(path.parent) == [path.name]


def test_a_state_that_the_system_does_not_give_is_none(tmp_path: Path) -> None:
    with capture_logs() as said:
        assert load_state(tmp_path / ("long" * 75), "key") is None
    assert "File name too long" in said[0]["reason"]


def test_a_disk_that_fails_leaves_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pi.safetensors"
    save_state(path, "key", OLD)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(EnvironmentFailure):
        save_state(path, "key", NEW)
    assert_holds(path, OLD)


async def test_each_name_and_each_key_has_a_state_of_its_own(tmp_path: Path) -> None:
    own = LocalCheckpoint(tmp_path)
    own.open("pi", lambda: "network")
    assert not own.restore(backend(1.0))
    await own.save(backend(2.0))
    fresh = backend(1.0)
    assert own.restore(fresh)
    assert fresh.weights.tolist() == [2.0] * 4
    for name, key in (("pi", "network/run/7"), ("pi-2", "network")):
        own.open(name, lambda key=key: key)
        assert not own.restore(backend(1.0))


async def test_a_state_belongs_to_one_process_at_a_time(tmp_path: Path) -> None:
    """Two children of a machine, for two runs, may have the same name and the same folder."""
    program = (
        "import fcntl, sys\n"
        "with open(sys.argv[1], 'w') as file:\n"
        "    fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "    print(flush=True)\n"
        "    sys.stdin.read()\n"
    )
    lock = tmp_path / ".pi.lock"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        other.stdout.readline()
        own = LocalCheckpoint(tmp_path)
        with capture_logs() as said:
            own.open("pi", lambda: "key")
        assert said[0]["path"] == str(tmp_path / "pi.safetensors")
        assert "another child uses this state, so this one keeps none" in said[0]["event"]
        await own.save(backend(2.0))
        own.open("pi-2", lambda: "key")
        await own.save(backend(2.0))
        assert sorted(os.listdir(tmp_path)) == [".pi-2.lock", ".pi.lock", "pi-2.safetensors"]
        other.stdin.close()
    own.open("pi", lambda: "key")
    await own.save(backend(2.0))
    assert (tmp_path / "pi.safetensors").exists()
    second = LocalCheckpoint(tmp_path)  # of the same process
    second.open("pi", lambda: "key")
    assert not second.restore(backend(1.0))
    second.close()
    own.close()
    second.open("pi", lambda: "key")
    assert second.restore(backend(1.0))
    second.close()


async def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    own = LocalCheckpoint(None)
    own.open("pi", lambda: "network")
    await own.save(backend(2.0))
    await own.keep(backend(2.0))
    assert not own.restore(backend(1.0))


async def test_it_is_saved_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_checkpoint, "_EVERY_SECONDS", 0.01)
    own = LocalCheckpoint(tmp_path)
    own.open("pi", lambda: "key")
    learning = backend(2.0)
    task = asyncio.create_task(own.keep(learning))

    def saved() -> float | None:
        found = load_state(tmp_path / "pi.safetensors", "key")
        return None if found is None else float(found["weights"][0])

    await eventually(lambda: saved() == 2.0)
    learning.weights[:] = 3.0
    await eventually(lambda: saved() == 3.0)
    task.cancel()
    await asyncio.wait((task,))


async def test_a_save_that_is_cut_off_ends_before_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    slow = threading.Event()
    writing = threading.Event()
    really: Callable[..., None] = save_state

    def save(path: Path, key: str, arrays: dict[str, Any]) -> None:
        order.append("begin")
        writing.set()
        slow.wait()
        really(path, key, arrays)
        order.append("end")

    monkeypatch.setattr(local_checkpoint, "save_state", save)
    own = LocalCheckpoint(tmp_path)
    own.open("pi", lambda: "key")
    first = asyncio.create_task(own.save(backend(2.0)))
    await eventually(writing.is_set)
    first.cancel()
    await asyncio.wait((first,))
    second = asyncio.create_task(own.save(backend(3.0)))
    for _ in range(10):
        await asyncio.sleep(0)
    slow.set()
    await second
    assert order == ["begin", "end"] * 2
    fresh = backend(1.0)
    assert own.restore(fresh)
    assert fresh.weights[0] == 3.0
