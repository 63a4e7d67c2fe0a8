"""What parts have written is read as one, and cut anew for other parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genkidama.errors import ConfigurationError
from genkidama.protocol.shard import WHOLE, Shard
from genkidama.protocol.vector import DTYPE, Signature
from genkidama.runs import sharded_checkpoint
from genkidama.runs.checkpoint import Checkpoint, CheckpointFolder
from genkidama.server.trial import Snapshot

SIGNATURE = Signature.of([("a", [3, 5]), ("b", [4]), ("statistics.returns", [3])])


def checkpoint(version: int, first: float = 0.0) -> Checkpoint:
    """One whose numbers are all different."""
    size = SIGNATURE.size
    vector = np.arange(first, first + size, dtype=DTYPE)
    trained = size - SIGNATURE.statistics
    state = {"first": -vector[:trained], "__trained__": vector + 0.5, "clock": np.array([7.0])}
    snapshot = Snapshot(
        version=version,
        exchanges=version,
        updates=float(version),
        episodes=2,
        steps=3,
        seconds=4.0,
        alpha=0.5,
        beta=0.5,
    )
    return Checkpoint(None, SIGNATURE, vector, snapshot, state)


def write(run: Path, whole: Checkpoint, part: Shard) -> None:
    mine = sharded_checkpoint.cut(whole, part)
    folder = CheckpointFolder(
        sharded_checkpoint.directory_of(run, part) / sharded_checkpoint.CHECKPOINTS
    )
    folder.prepare()
    folder.save_latest(mine.signature, mine.vector, mine.snapshot, mine.state)


def parts(count: int) -> list[Shard]:
    return [Shard(number, count) for number in range(1, count + 1)]


def same(one: Checkpoint | None, other: Checkpoint) -> bool:
    assert one is not None
    assert one.signature == other.signature and one.snapshot == other.snapshot
    assert one.vector.tobytes() == other.vector.tobytes()
    assert {name: array.tobytes() for name, array in one.state.items()} == {
        name: array.tobytes() for name, array in other.state.items()
    }
    return True


@settings(max_examples=12)
@given(st.integers(1, 7), st.integers(1, 7))
def test_a_run_goes_on_in_another_number_of_parts(
    tmp_path_factory: pytest.TempPathFactory, before: int, after: int
) -> None:
    run, whole = tmp_path_factory.mktemp("run"), checkpoint(5)
    for part in parts(before):
        write(run, whole, part)
    assert same(
        sharded_checkpoint.load(run / "checkpoints" / "version-0000000005.safetensors"), whole
    )
    for part in parts(after):
        assert same(
            sharded_checkpoint.newest(run, part, pytest.fail), sharded_checkpoint.cut(whole, part)
        )
        # What has begun in the new parts does not hide the old ones from those that are late.
        if part.is_first and before != after:
            write(run, checkpoint(6), part)
            (run / "checkpoints" / "version-0000000006.safetensors").rename(
                run / "checkpoints" / "version-0000000007.safetensors"
            )


def test_each_parts_nearest_file_is_taken_and_the_best_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = parts(2)
    write(tmp_path, checkpoint(10), first)
    for version in (4, 9, 30):
        write(tmp_path, checkpoint(version, first=float(version)), second)
    path = tmp_path / "checkpoints" / "version-0000000010.safetensors"
    half = second.numbers(SIGNATURE).start
    assert sharded_checkpoint.load(path).vector.tolist() == [*range(half), *range(half + 9, 22 + 9)]
    mine = sharded_checkpoint.cut(checkpoint(11, first=11.0), second)
    CheckpointFolder(tmp_path / "parts/2-of-2/checkpoints").save_best(
        mine.signature, mine.vector, mine.snapshot, mine.state
    )
    (tmp_path / "parts/2-of-2/checkpoints/version-0000000009.safetensors").write_bytes(b"broken")
    monkeypatch.chdir(path.parent)  # as a user may, who names it from there
    found = sharded_checkpoint.load(path.name).vector
    assert found[half:].tolist() == list(range(half + 11, 22 + 11))


def test_a_part_goes_on_from_its_own_file_if_that_is_newer(tmp_path: Path) -> None:
    for part in parts(3):
        write(tmp_path, checkpoint(5), part)
    second = Shard(2, 2)
    write(tmp_path, checkpoint(8, first=1.0), second)
    own = sharded_checkpoint.cut(checkpoint(8, first=1.0), second)
    assert same(sharded_checkpoint.newest(tmp_path, second, pytest.fail), own)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    write(tmp_path, checkpoint(5), Shard(1, 2))
    path = tmp_path / "checkpoints" / "version-0000000005.safetensors"
    there = tmp_path / "parts" / "2-of-2" / "checkpoints"
    missing = f"{path}: is part 1/2, and {there} holds no checkpoint of part 2/2; copy it there"
    with pytest.raises(ConfigurationError) as caught:
        sharded_checkpoint.load(path)
    assert str(caught.value) == missing
    said: list[str] = []
    with pytest.raises(ConfigurationError) as caught:
        sharded_checkpoint.newest(tmp_path, WHOLE, said.append)
    assert str(caught.value) == f"{missing}; or go on in 2 parts"
    assert sharded_checkpoint.newest(tmp_path, Shard(2, 2), pytest.fail) is None
    write(tmp_path, checkpoint(5), Shard(2, 2))
    with pytest.raises(ConfigurationError, match="is part 2/2 of a checkpoint; name the run's"):
        sharded_checkpoint.load(there / "version-0000000005.safetensors")


def test_what_a_rule_remembers_is_cut_like_the_weights() -> None:
    whole = checkpoint(5)
    state = sharded_checkpoint.cut(whole, Shard(2, 2)).state
    assert state["first"].tolist() == list(range(-9, -19, -1))
    assert state["__trained__"].tolist() == [number + 0.5 for number in range(9, 22)]
    assert state["clock"].tolist() == [7.0]


def test_where_a_part_keeps_its_own() -> None:
    run = Path("runs/a")
    assert (
        sharded_checkpoint.directory_of(run, WHOLE)
        == sharded_checkpoint.directory_of(run, Shard(1, 3))
        == run
    )
    for part in parts(3):
        assert sharded_checkpoint.run_of(sharded_checkpoint.directory_of(run, part), part) == run
