"""A3C in virtual time: who learns when, and what one core learns."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from genkidama.overrides import parse_settings
from studies import store
from studies.thesis import virtual
from studies.thesis.cells import ALONE, CELLS, FORMS
from studies.thesis.measure import judged
from studies.thesis.virtual import exchanged, in_turns
from tests.child.cores import single
from tests.helpers import ROOT, until

CHILD = FORMS["virtual-child"]


class Planned:
    """A core whose batches take the seconds that it is told; every second one ends an episode."""

    def __init__(self, number: int, seconds: list[float], seen: list[Any]) -> None:
        self.number = number
        self.seconds = iter(seconds)
        self.seen = seen
        self.batches = 0
        self.clock = next(self.seconds)

    def learn(self) -> bool:
        self.batches += 1
        self.seen.append((self.number, self.clock))
        return self.batches % 2 == 0

    def go_on(self, now: float) -> None:
        self.clock = now + next(self.seconds)


def turns(waits: bool, episodes: int) -> list[Any]:
    seen: list[Any] = []
    fast, slow = Planned(0, [1.0] * 99, seen), Planned(1, [3.0] * 99, seen)
    turns = in_turns([fast, slow], waits)  # type: ignore[list-item]
    for _, now in zip(range(episodes), turns, strict=False):
        assert now == max(clock for _, clock in seen)
    return seen


def test_cores_learn_as_their_batches_are_full() -> None:
    assert turns(waits=False, episodes=2) == [(0, 1.0), (0, 2.0), (0, 3.0), (1, 3.0), (0, 4.0)]


def test_cores_that_wait_go_on_when_the_last_has_ended_its_episode() -> None:
    episode = [(0, 1.0), (0, 2.0), (1, 3.0), (1, 6.0)]
    assert turns(waits=True, episodes=2) == episode + [(core, 6.0 + at) for core, at in episode]


def test_a_core_alone_learns_what_it_learns_without_a_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oracle is a core's own loop: collect, learn, and pull when it is time."""
    settings = virtual.experiment_of(CHILD, 3).with_settings(
        parse_settings(["environment.id=CartPole-v1", "algorithm.pull_steps=30",
                        "algorithm.batch_size=20"])
    )  # fmt: skip
    found = []
    with single(settings) as (core, memory, _):
        clocked = virtual.Clocked(core, CHILD, np.random.default_rng(0))
        assert len(list(itertools.islice(in_turns([clocked], waits=True), 8))) == 8
        found.append(memory.weights.copy())
    with single(settings) as (core, memory, _):
        episodes = since_pull = 0
        while True:
            batch = core.collector.collect()
            core.learn(batch)
            since_pull += batch.steps
            episodes += batch.ended
            if episodes == 8:
                break
            if batch.ended or since_pull >= 30:
                core.pull()
                since_pull = 0
        found.append(memory.weights.copy())
    assert np.array_equal(*found)


def test_particles_make_steps_slow_until_the_episode_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "_JITTER", 0.0)
    slow = replace(CHILD, particle=1.0)
    settings = virtual.experiment_of(slow, 1)
    with single(settings) as (core, _, _):
        clocked = virtual.Clocked(core, slow, np.random.default_rng(0))
        particles, now = 0, 0.0
        for _ in range(6):
            batch = clocked._batch
            fired = (batch.rows.actions[: batch.steps].ravel() != 0).tolist()
            for on in fired:
                particles += on
                now += 1.0 + particles
            assert clocked.clock == pytest.approx(now)
            if clocked.learn():
                particles = 0
            clocked.go_on(now)


def test_a_run_is_the_same_again_and_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CELLS, ALONE, replace(CELLS[ALONE], updates=20))
    found, again, other = (virtual.learn("virtual-child", seed) for seed in (5, 5, 6))
    assert [updates for updates, _ in found["kept"]] == list(range(1, 21))
    assert (found["steps"], found["exchanges"]) == (again["steps"], [20])
    for (_, a), (_, b) in zip(found["kept"], again["kept"], strict=True):
        assert np.array_equal(a, b)
    assert not np.array_equal(found["kept"][0][1], other["kept"][0][1])
    results = tmp_path / "rows.jsonl"
    store.append(results, {"cell": "virtual-child", "seed": 5})
    words = ["--forms", "virtual-child", "--seeds", "5", "--results", str(results)]
    assert virtual.main([*words, "--work", str(tmp_path)]) == 0
    assert len(store.read(results)) == 1
    with pytest.raises(SystemExit):
        virtual.main([*words, "--episodes", "0"])
    assert "--episodes: 0: a whole number of at least 1 is needed" in capsys.readouterr().err


def test_children_exchange_as_their_episodes_end() -> None:
    cell = replace(CELLS["grid-0.5-0.5"], settings={"parent.alpha": 0.75, "child.beta": 0.5})
    parent = np.zeros(1, np.float32)
    weights = np.zeros((2, 1), np.float32)

    def learning(number: int, seconds: float) -> Iterator[float]:
        for episode in itertools.count(1):
            weights[number] += 8.0
            yield episode * seconds

    children = [(weights[0], learning(0, 2.0)), (weights[1], learning(1, 5.0))]
    seen = []
    for number in exchanged(parent, children, cell):
        seen.append((number, float(parent[0]), float(weights[number, 0])))
        if len(seen) == 4:
            break
    # Each: θ_P as 0.25 of the old one and 0.75 of θ_C, then θ_C as a half of each.
    assert seen == [
        (0, 0.75 * 8.0, 0.5 * (8.0 + 6.0)),
        (0, 0.25 * 6.0 + 0.75 * 15.0, 0.5 * (15.0 + 12.75)),
        (1, 0.25 * 12.75 + 0.75 * 8.0, 0.5 * (8.0 + 9.1875)),
        (0, 0.25 * 9.1875 + 0.75 * 21.875, 0.5 * (21.875 + 18.703125)),
    ]


def test_children_share_the_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CELLS, "why-program", replace(CELLS["why-program"], updates=20))
    found = virtual.learn("virtual-two", 5)
    assert sum(found["exchanges"]) == 40 and all(found["exchanges"])
    assert [updates for updates, _ in found["kept"]] == list(range(1, 21))


def test_cores_may_draw_alike() -> None:
    assert len({virtual.draws(CHILD, 3, number) for number in range(4)}) == 4
    alike = replace(CHILD, alike=True)
    assert len({virtual.draws(alike, 3, number) for number in range(4)}) == 1
    assert virtual.draws(alike, 3, 0) != virtual.draws(alike, 4, 0)


@pytest.mark.slow
def test_every_checkpoint_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CELLS, ALONE, replace(CELLS[ALONE], updates=2))
    row = judged(virtual.experiment_of(CHILD, 5), 5, virtual.learn("virtual-child", 5)["kept"], 4)
    assert [moment for moment, _, _ in row["curve"]] == [1, 2]
    assert row["judged_by"] == len(row["returns"]) == 4
    assert row["curve"][-1][1] == pytest.approx(np.mean(row["returns"]), abs=0.06)


@pytest.mark.slow
def test_it_ends_at_once_when_it_is_told_to(tmp_path: Path) -> None:
    words = ["--results", tmp_path / "rows.jsonl", "--work", tmp_path, "--forms", "virtual-child"]
    line = [sys.executable, "-m", "studies.thesis.virtual", *map(str, words)]
    with subprocess.Popen(line, cwd=ROOT) as process:
        learns = psutil.Process(process.pid).children
        workers = until(lambda: [one for one in learns() if one.cpu_times().user > 3.0])
        process.terminate()
        assert process.wait(timeout=5) == 143
    until(lambda: not any(one.is_running() for one in workers))
