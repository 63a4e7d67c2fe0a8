"""The table of environments: from rows, and one real row."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from studies.environments.__main__ import OF, PAGE, ROOT, TASKS, filled, ours, table


def row(environment: str, contender: str, seed: int, mean: float) -> dict[str, object]:
    return {"environment": environment, "contender": contender, "seed": seed, "mean": mean}


def test_a_line_has_the_medians_of_the_seeds_that_both_have() -> None:
    rows = [row("CartPole-v1", "genkidama", seed, 480.0 + seed) for seed in (1, 2, 3, 4)]
    rows += [row("CartPole-v1", "sb3", seed, 100.0 * seed) for seed in (1, 2, 3)]
    rows += [row("Acrobot-v1", "genkidama", 1, -80.0)]
    assert table(rows).splitlines()[2:] == [
        "| `CartPole-v1` | `cartpole/cartpole.toml` | 10 | 482.0 | 200.0 | 3 |"
    ]
    page = PAGE.read_text()
    assert table(rows) in filled(page, rows)
    assert filled(filled(page, []), rows) == filled(page, rows)


def test_each_file_is_an_example() -> None:
    files = [ROOT / "examples" / task.file for task in TASKS if task.file]
    assert all(file.is_file() for file in files)


@pytest.mark.slow
@pytest.mark.parametrize("environment", ["CartPole-v1", "FrozenLake-v1"])
def test_a_row_is_a_run_of_the_command_line(tmp_path: Path, environment: str) -> None:
    task = dataclasses.replace(OF[environment], seconds=2.0)
    assert ours(task, 1, tmp_path)["std"] >= 0.0
