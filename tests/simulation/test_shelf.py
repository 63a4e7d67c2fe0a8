"""Days of a shelf: no law is broken, and planted bugs are noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkidama.runs.checkpoint import CheckpointFolder
from genkidama.runtime.files import write_atomically
from tests.simulation.planted import BUGS, ROOT, Bug, hunt
from tests.simulation.shelf import plan, play, shrink
from tests.simulation.world import Killed, Machine, World


@pytest.mark.parametrize("first", range(0, 50, 25))
def test_no_law_is_broken(first: int) -> None:
    reports = {seed: play(plan(seed)) for seed in range(first, first + 25)}
    broken = [f"make simulate SEED={seed}: {each.broken}" for seed, each in reports.items()]
    assert [line for line in broken if not line.endswith(": ")] == []
    assert sum(report.pushes for report in reports.values()) > 500
    assert sum(report.faults for report in reports.values()) > 100


def test_a_day_is_the_same_each_time() -> None:
    assert play(plan(3)) == play(plan(3))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_each_bug_can_still_be_planted(bug: Bug) -> None:
    assert (ROOT / "genkidama" / bug.file).read_text().count(bug.old) == 1


@pytest.mark.slow
def test_a_planted_bug_is_noticed() -> None:
    (bug,) = (each for each in BUGS if each.name == "a push that is sent again counts twice")
    assert any(line.startswith("make simulate SEED=") for line in hunt(bug, 50))


def test_a_day_shrinks_to_the_events_that_break_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another bug: weights that are NaN are taken."""
    monkeypatch.setattr("genkidama.server.parameter_server.is_finite", lambda _: True)
    monkeypatch.setattr("genkidama.server.parameter_server.measure", lambda *_: (1.0, ""))
    days = (day for day in map(plan, range(100)) if "NaN" in {each.kind for each in day.happenings})
    day = next(day for day in days if play(day).broken)
    assert len(shrink(day).happenings) < 3


# The world itself.


def write(world: World, content: bytes, machine: Machine | None = None) -> Path:
    machine = machine or Machine(world, "host")
    path = world.disk("host").path / "file"
    world.run_as(machine, lambda: write_atomically(path, content))
    return path


def test_a_power_cut_leaves_what_was_flushed(tmp_path: Path) -> None:
    world = World("1", tmp_path)
    with world.installed():
        path = write(world, b"flushed")
        world.disk("host").cut_power()
        assert path.read_bytes() == b"flushed"


@pytest.mark.parametrize("fuse", range(4))
def test_a_write_that_is_cut_short_leaves_one_of_the_two(fuse: int, tmp_path: Path) -> None:
    world = World("1", tmp_path)
    with world.installed():
        path = write(world, b"old")
        world.disk("host").fuse = fuse
        with pytest.raises(Killed):
            write(world, b"new")
        world.disk("host").fuse = None
        world.disk("host").cut_power()
        assert path.read_bytes() in (b"old", b"new")


@pytest.mark.parametrize("seed", range(4))
def test_a_checkpoint_that_was_found_stays(seed: int, tmp_path: Path) -> None:
    """Also one whose writer was killed before it had flushed the folder."""
    world = World(f"{seed}", tmp_path)
    with world.installed():
        path = world.disk("host").path / "file"
        world.disk("host").fuse = 4
        with pytest.raises(Killed):
            write(world, b"new")
        assert path.read_bytes() == b"new"
        world.run_as(Machine(world, "host"), CheckpointFolder(path.parent).prepare)
        world.disk("host").cut_power()
        assert path.read_bytes() == b"new"


def test_a_dead_process_writes_nothing(tmp_path: Path) -> None:
    world = World("1", tmp_path)
    with world.installed():
        machine = Machine(world, "host")
        machine.kill()
        with pytest.raises(Exception, match="cannot be written"):
            write(world, b"new", machine)
