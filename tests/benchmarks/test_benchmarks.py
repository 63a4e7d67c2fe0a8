"""Judged policies, the first that reaches a goal, and the end of a benchmark's command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import processes, stalls, store
from benchmarks.judging import Judge, Snapshot, first
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.runs.evaluation_worker import play
from tests.helpers import ROOT, gone, small, until


@pytest.mark.slow
def test_a_policy_of_envpools_is_judged_in_gymnasiums_by_the_same_episodes() -> None:
    """EnvPool's own options say how it computes, and Gymnasium does not take them."""
    environment = make_environment(small().environment)
    model = Model(small(), environment)
    snapshot = Snapshot(0.0, 0, None, model.numbers.copy())
    theirs = small(environment={"id": "envpool:CartPole-v1", "options": {"num_threads": 2}})
    with Judge(theirs, 7) as judge:
        mean, deviation = judge(snapshot, 5)
        assert judge(snapshot, 5) == (mean, deviation)
    returns = play(model, environment, range(5), 7, greedy=False)
    assert mean == pytest.approx(sum(returns) / 5)
    assert deviation > 0


def test_a_judge_takes_a_thread_a_process_and_gives_way() -> None:
    with Judge(small(), 7) as judge:
        assert judge._pool.submit(os.getenv, "OMP_NUM_THREADS").result() == "1"
        assert judge._pool.submit(os.nice, 0).result() >= min(19, os.nice(0) + 10)


def test_lanes_of_gymnasium_have_a_rate() -> None:
    command = [sys.executable, "benchmarks/lanes.py", "--one", "Gymnasium", "2", "--steps", "64"]
    assert float(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout) > 0.0


# Stalls.


def test_a_trace_names_a_collection_for_which_the_loop_waits(tmp_path: Path) -> None:
    trace = stalls.Trace(file := tmp_path / "trace.jsonl")
    trace.collects("start", {})
    trace._collecting -= 0.2
    trace.collects("stop", {"generation": 2, "collected": 3})
    shares = {"cpu": 0.24, "queue": 0.0, "blocked": 0.01, "stack": ["a.py:1 run"], "state": "R"}
    trace.note("stall", trace._collecting - 0.05, 0.25, **shares)
    trace.note("stall", trace._collecting + 9.0, 0.25, **(shares | {"cpu": 0.0, "queue": 0.25}))
    trace.note("flush", trace._collecting + 0.01, 0.9 * stalls.LEAST)  # too short to be kept
    trace._file.close()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["what"] for row in rows] == ["gc", "stall", "stall"]
    said = stalls.table(rows)
    assert "1 cpu + gc" in said and "1 queue\n" in said
    assert "2 stalls of at least 100 ms" in said and "1 full collections" in said


# The first passage.


def snapshots(*means: float | None) -> list[Snapshot]:
    return [
        Snapshot(float(second), second * 100, mean, np.array([second], np.float32))
        for second, mean in enumerate(means)
    ]


def test_a_row_says_whether_files_but_results_differ_from_its_commit(tmp_path: Path) -> None:
    results, program = tmp_path / "docs/results/rows.jsonl", tmp_path / "program.py"
    results.parent.mkdir(parents=True)
    results.touch()
    program.touch()
    person = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    for words in (["init", "-q"], ["add", "."], [*person, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    origin = store.origin.__wrapped__
    commit = origin(tmp_path)["commit"]
    assert commit and not commit.endswith("-dirty")

    results.write_text("{}\n")
    assert origin(tmp_path)["commit"] == commit
    program.write_text("print()\n")
    assert origin(program.parent)["commit"] == f"{commit}-dirty"


def test_the_first_snapshot_that_reaches_the_goal() -> None:
    true = {2: 190.0, 3: 201.0, 4: 230.0}
    asked: list[tuple[int, int]] = []

    def judge(snapshot: Snapshot, episodes: int) -> tuple[float, float]:
        asked.append((int(snapshot.vector[0]), episodes))
        return true[int(snapshot.vector[0])], 50.0

    found = first(snapshots(None, 100.0, 160.0, 170.0, 250.0), 200.0, judge)
    assert found == {"seconds": 3.0, "steps": 300, "mean": 201.0, "std": 50.0}
    assert asked == [(2, 60), (2, 200), (2, 500), (3, 60), (3, 200), (3, 500)]


def test_a_lucky_look_is_no_passage() -> None:
    def judge(snapshot: Snapshot, episodes: int) -> tuple[float, float]:
        return (240.0 if episodes < 500 else 199.9), 50.0

    assert first(snapshots(230.0, 240.0), 200.0, judge) is None


def test_without_the_peers_their_rows_stay_to_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PEERS", tmp_path / "python")
    with pytest.raises(SystemExit, match=r"the peers are not installed: make peers"):
        store.once(file := tmp_path / "rows.jsonl", [], {}, lambda: processes.peer("sb3_sac.py"))
    assert store.read(file) == []


MAIN = """
import sys
from benchmarks.processes import command

@command
def main():
    print("a line\\n" * {lines})
    return 0

sys.exit(main())
"""


@pytest.mark.parametrize("lines", [1, 100_000], ids=["at its end", "in the middle"])
def test_it_ends_in_silence_when_nobody_reads_it_any_more(lines: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        found = subprocess.run(
            [sys.executable, "-c", MAIN.format(lines=lines)],
            cwd=ROOT,
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=60.0,
        )
    finally:
        os.close(writer)
    assert found.stderr == b""
    assert found.returncode != 0


SERVER = """
import sys, time
from pathlib import Path
from benchmarks.processes import start

print(start([sys.executable, "-c", "import time; time.sleep(99)"], Path(sys.argv[1])).pid)
sys.stdout.flush()
time.sleep(99)
"""


def test_killed_it_leaves_no_server(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVER, str(tmp_path / "log")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        server = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    until(lambda: gone(server))
