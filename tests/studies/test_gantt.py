from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from genkidama.errors import ConfigurationError, EnvironmentFailure
from studies.hypertrick import gantt
from studies.hypertrick.gantt import gantt_figure, gantt_text, save_gantt, simulate_report
from studies.hypertrick.methods import Independent, random_search
from studies.hypertrick.problems import Toy
from studies.hypertrick.simulator import Outcome, simulate


def outcome() -> Outcome:
    """Trial 0 runs both phases on node 0, trial 1 is stopped after its first on node 1.

    There trial 2 is then complete.
    """
    problem = Toy(
        np.array([[2.0, 3.0], [1.0, 1.0], [2.0, 2.0]]),
        np.array([[5.0, 6.0], [1.0, 1.0], [7.0, 8.0]]),
    )
    return simulate(problem, Independent(2, lambda trial, phase, metric: trial == 1, 3), [1.0, 1.0])


def test_the_chart_for_a_terminal() -> None:
    assert gantt_text(outcome(), width=25).splitlines() == [
        "N0 0░░░░░░░░░0▒▒▒▒▒▒▒▒▒▒▒▒▒┃".replace("▒", "▓"),
        "N1 1░░░×2░░░░░░░░░2▓▓▓▓▓▓▓▓┃",
        "   0                       5",
    ]


def test_more_phases_share_the_four_shades_and_short_ones_lose_their_number() -> None:
    problem = Toy(np.full((1, 8), 1.0), np.zeros((1, 8)))
    chart = gantt_text(simulate(problem, random_search(8, 1), [1.0]), width=24).splitlines()
    assert chart[0] == "N0 0░░0░░0▒▒0▒▒0▓▓0▓▓0██0█┃"
    problem = Toy(np.full((12, 1), 1.0), np.zeros((12, 1)))
    chart = gantt_text(simulate(problem, random_search(1, 12), [1.0]), width=24).splitlines()
    assert chart[0] == "N0 " + "".join(f"{trial}┃" if trial < 10 else "1┃" for trial in range(12))


def test_a_figure_has_a_bar_for_each_phase() -> None:
    figure = gantt_figure(outcome(), "three trials")
    (axes,) = figure.axes
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [
        (0, 1),
        (0, 2),
        (1, 2),
        (2, 3),
        (3, 2),
    ]
    assert [text.get_text() for text in axes.texts] == ["W1\n1", "W0\n5", "W2\n7", "W0\n6", "W2\n8"]
    assert axes.get_title() == "three trials"


def test_figures_are_written(tmp_path: Path) -> None:
    png, svg = save_gantt(outcome(), tmp_path / "new" / "chart", "x")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_a_folder_that_cannot_be_is_the_machine_s_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFailure, match="the figure cannot be written"):
        save_gantt(outcome(), tmp_path / "file" / "chart", "x")


def test_the_report_has_four_charts_and_the_paper_s_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gantt, "DRAWS", 20)
    text = simulate_report(figures=tmp_path)
    assert [
        int(line.split()[1].rstrip(".")) for line in text.splitlines() if line.startswith("Figure ")
    ] == [2, 3, 8, 9]
    assert sum(line.startswith("N0 ") for line in text.splitlines()) == 4
    names = [
        "figure-2-hypertrick",
        "figure-3-halving-dynamic",
        "figure-8-halving-static",
        "figure-9-grid",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{name}.{end}" for name in names for end in ("png", "svg")
    )
    rows = {line[:28].strip(): line[28:].split() for line in text.splitlines() if " ± " in line}
    assert [row[0] for row in rows.values()][:4] == ["10.0", "12.1", "15.3", "15.6"]
    # The default draw was chosen for this.
    assert all(abs(float(row[1]) / float(row[0]) - 1) < 0.02 for row in list(rows.values())[:4])
    assert rows["Grid search"][2:] == [
        "15.60",
        "±",
        rows["Grid search"][4],
        rows["Grid search"][5],
        "100%",
    ]


def test_another_seed_is_another_draw_and_a_negative_one_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gantt, "DRAWS", 2)
    assert simulate_report(1) == simulate_report(1) != simulate_report(2)
    assert "chosen because" not in simulate_report(1)
    with pytest.raises(
        ConfigurationError, match="seed = -1: a whole number of at least 0 is needed"
    ):
        simulate_report(-1)


def test_charts_need_some_width() -> None:
    with pytest.raises(ConfigurationError, match="width = 3"):
        gantt_text(outcome(), width=3)
