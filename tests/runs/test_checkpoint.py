"""Checkpoints: what is written comes back, and what is broken gets no further than one line."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.protocol.vector import DTYPE, Signature, Vector
from genkidama.runs.checkpoint import CheckpointFolder, _checksum, load, save
from genkidama.server.parameter_server import Snapshot

SIGNATURE = Signature.of(
    [("z.weight", (3, 2)), ("a.bias", (3,)), ("log_deviation", ()), ("empty", (0, 4))]
)


def numbers(start: float = 0.0) -> Vector:
    return np.arange(SIGNATURE.size, dtype=DTYPE) + DTYPE.type(start)


def snapshot(version: int = 7, mean_return: float | None = 12.5) -> Snapshot:
    return Snapshot(
        version=version,
        exchanges=version,
        updates=3.5,
        episodes=4,
        steps=500,
        seconds=1.25,
        alpha=0.5,
        beta=0.25,
        mean_return=mean_return,
        returns=[12.0, 13.0],
        children={"pi-1": {"exchanges": version, "episodes": 4, "steps": 500}},
        experiment=Experiment(name="test").to_dict(),
    )


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    save(path, SIGNATURE, numbers(), snapshot())
    found = load(path)
    assert (found.path, found.signature) == (path, SIGNATURE)
    assert msgspec.json.encode(found.snapshot) == msgspec.json.encode(snapshot())
    assert found.experiment == Experiment(name="test")
    np.testing.assert_array_equal(found.vector, numbers())
    assert found.vector.flags.writeable


def test_any_reader_of_safetensors_finds_the_tensors(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    save(path, SIGNATURE, numbers(), snapshot())
    tensors = safetensors.numpy.load_file(path)
    assert {name: tensor.shape for name, tensor in tensors.items()} == dict(SIGNATURE.entries)
    np.testing.assert_array_equal(tensors["z.weight"], [[0, 1], [2, 3], [4, 5]])
    with safetensors.safe_open(path, framework="np") as file:
        metadata = file.metadata()
    assert metadata["format"] == "genkidama-1"
    assert (metadata["version"], metadata["alpha"], metadata["returns"]) == (
        "7",
        "0.5",
        "[12.0,13.0]",
    )


def broken(path: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    text = str(caught.value)
    assert text.startswith(str(path))
    assert "\n" not in text
    return text


def test_a_missing_file(tmp_path: Path) -> None:
    assert "no such checkpoint" in broken(tmp_path / "none.safetensors")
    assert "no such checkpoint" in broken(tmp_path)


@pytest.mark.parametrize("length", [0, 4, 50, -1])
def test_a_truncated_file(tmp_path: Path, length: int) -> None:
    path = tmp_path / "some.safetensors"
    save(path, SIGNATURE, numbers(), snapshot())
    path.write_bytes(path.read_bytes()[:length])
    assert "not a readable checkpoint" in broken(path)


def rewritten(
    path: Path,
    tensors: dict[str, Any] | None = None,
    changes: Mapping[str, str | None] | None = None,
) -> Path:
    """A checkpoint with other tensors, or with metadata changed (None: taken away). Its checksum is
    right unless it is changed itself."""
    save(path, SIGNATURE, numbers(), snapshot())
    with safetensors.safe_open(path, framework="np") as file:
        metadata = file.metadata() | (changes or {})
    tensors = safetensors.numpy.load_file(path) if tensors is None else tensors
    kept = {key: value for key, value in metadata.items() if value is not None}
    if "checksum" not in (changes or {}):
        kept["checksum"] = _checksum(tensors, kept)
    safetensors.numpy.save_file(tensors, path, kept)
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"format": None},
        {"format": "genkidama-2"},
        {"signature": None},
        {"signature": "[["},
        {"signature": "[" * 5000 + "]" * 5000},
        {"experiment": '{"a":' * 5000 + "1" + "}" * 5000},
        {"signature": '{"a": 1}'},
        {"signature": '[["z.weight", [-1, 2]]]'},
        {"signature": '[["z.weight", [1000000, 1000000, 1000000]]]'},
        {"signature": '[["other", [3]]]'},
        {"version": None},
        {"version": '"seven"'},
        {"returns": "nonsense"},
        {"whole": '[["z.weight", [7]]]'},
        {"children": "[1]"},
        {"checksum": "0" * 32},
        {"checksum": None},
    ],
)
def test_wrong_metadata(tmp_path: Path, changes: dict[str, str | None]) -> None:
    assert "not a readable checkpoint" in broken(
        rewritten(tmp_path / "some.safetensors", changes=changes)
    )


@pytest.mark.parametrize(("kind", "size"), [("BF16", 2), ("F8_E4M3", 1), ("I64", 8)])
def test_a_tensor_of_a_kind_that_is_never_written(tmp_path: Path, kind: str, size: int) -> None:
    data = rewritten(path := tmp_path / "some.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + length]), data[8 + length :] + bytes(size)
    offsets = [len(rest) - size, len(rest)]
    header["odd"] = {"dtype": kind, "shape": [1], "data_offsets": offsets}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + rest)
    assert f"'odd' is {kind}, expected F32 or F64" in broken(path)


def test_missing_and_wrong_tensors(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    good = {
        "z.weight": np.zeros((3, 2), "f4"),
        "a.bias": np.zeros(3, "f4"),
        "log_deviation": np.zeros((), "f4"),
        "empty": np.zeros((0, 4), "f4"),
    }
    assert load(rewritten(path, good)).vector.sum() == 0
    assert "a.bias" in broken(
        rewritten(path, {name: array for name, array in good.items() if name != "a.bias"})
    )
    assert "F64" in broken(rewritten(path, good | {"a.bias": np.zeros(3, "f8")}))
    assert "[4]" in broken(rewritten(path, good | {"a.bias": np.zeros(4, "f4")}))


@settings(max_examples=80, deadline=None)
@given(position=st.integers(0, 5000), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found(
    tmp_path_factory: pytest.TempPathFactory, position: int, bit: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.safetensors"
    save(path, SIGNATURE, numbers(), snapshot())
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= 1 << bit
    path.write_bytes(content)
    with suppress(ConfigurationError):  # and no other error
        found = load(path)  # a blank of the header may become another one
        assert msgspec.json.encode(found.snapshot) == msgspec.json.encode(snapshot())
        np.testing.assert_array_equal(found.vector, numbers())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_neither_written_nor_read(tmp_path: Path, value: float) -> None:
    path = tmp_path / "some.safetensors"
    bad = {**safetensors_of(path), "a.bias": np.full(3, value, "f4")}
    assert "'a.bias' holds NaN or infinity" in broken(rewritten(path, bad))
    save(path, SIGNATURE, numbers(), snapshot())
    vector = numbers()
    vector[4] = value
    with pytest.raises(EnvironmentFailure, match=r"not written: .* holds NaN or infinity"):
        save(path, SIGNATURE, vector, snapshot(8))
    with pytest.raises(EnvironmentFailure, match=r"__rule__\.m.* holds NaN or infinity"):
        save(path, SIGNATURE, numbers(), snapshot(8), {"m": np.array([value])})
    assert load(path).snapshot.version == 7


def safetensors_of(path: Path) -> dict[str, Any]:
    save(path, SIGNATURE, numbers(), snapshot())
    return safetensors.numpy.load_file(path)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "some.safetensors"
    save(path, SIGNATURE, numbers(), snapshot())

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(
            EnvironmentFailure, match=f"{path}: cannot be written: No space left on device"
        ):
            save(path, SIGNATURE, numbers(100.0), snapshot(8))
    assert os.listdir(tmp_path) == ["some.safetensors"]
    assert load(path).snapshot.version == 7


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="No such file or directory"):
        save(tmp_path / "nowhere" / "some.safetensors", SIGNATURE, numbers(), snapshot())
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints")
    folder.save_latest(SIGNATURE, numbers(), snapshot(3))
    folder.save_best(SIGNATURE, numbers(), snapshot(3))
    assert folder.versions() == [3] and folder.best_path.is_file()


def test_a_folder_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", keep=2)
    assert folder.latest() is None
    folder.prepare()
    folder.save_best(SIGNATURE, numbers(), snapshot(1))
    for version in (1, 2, 3, 12):
        folder.save_latest(SIGNATURE, numbers(version), snapshot(version))
    assert sorted(os.listdir(folder.path)) == [
        "best.safetensors",
        "version-0000000003.safetensors",
        "version-0000000012.safetensors",
    ]
    latest = folder.latest()
    assert latest is not None
    assert latest.snapshot.version == 12


def test_the_newest_readable_one_is_found(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=3)
    folder.save_best(SIGNATURE, numbers(), snapshot(1))
    for version in (1, 2, 3):
        folder.save_latest(SIGNATURE, numbers(), snapshot(version))
    found = []
    problems: list[str] = []
    for version in (3, 2, 1):
        folder.version_path(version).write_bytes(b"broken")
        latest = folder.latest(problems.append)
        assert latest is not None
        assert latest.path is not None
        found.append(latest.path.name)
    assert found == [
        "version-0000000002.safetensors",
        "version-0000000001.safetensors",
        "best.safetensors",
    ]
    assert [problem.split(":")[0] for problem in problems[-3:]] == [
        str(folder.version_path(version)) for version in (3, 2, 1)
    ]
    folder.best_path.unlink()
    assert folder.latest() is None


def test_settings_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    """Not so if nothing else is there: another version of the software could go on."""
    folder = CheckpointFolder(tmp_path)
    folder.save_latest(SIGNATURE, numbers(), snapshot(1))
    strange = snapshot(2)
    strange.experiment["novelty"] = 1
    folder.save_latest(SIGNATURE, numbers(), strange)
    problems: list[str] = []
    latest = folder.latest(problems.append)
    assert latest is not None and latest.snapshot.version == 1
    assert len(problems) == 1 and "version-0000000002" in problems[0] and "novelty" in problems[0]
    folder.version_path(1).write_bytes(b"broken")
    with pytest.raises(ConfigurationError, match="novelty"):
        folder.latest()


def test_going_on_below_a_broken_version_deletes_what_is_older(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=1)
    folder.version_path(50).write_bytes(b"broken")
    for version in (8, 9):
        folder.save_latest(SIGNATURE, numbers(), snapshot(version))
    assert folder.versions() == [9, 50]
    latest = folder.latest()
    assert latest is not None
    assert latest.snapshot.version == 9


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".version-0000000001.safetensors.tmp").write_bytes(b"half")
    CheckpointFolder(tmp_path).prepare()
    assert os.listdir(tmp_path) == []
