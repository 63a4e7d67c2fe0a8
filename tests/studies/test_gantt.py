from __future__ import annotations

import pytest

from studies.hypertrick import gantt
from studies.hypertrick.gantt import simulate_report


def test_the_report_has_four_charts_and_the_paper_s_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gantt, "DRAWS", 20)
    text = simulate_report()
    assert [
        int(line.split()[1].rstrip(".")) for line in text.splitlines() if line.startswith("Figure ")
    ] == [2, 3, 8, 9]
    assert sum(line.startswith("N0 ") for line in text.splitlines()) == 4
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
