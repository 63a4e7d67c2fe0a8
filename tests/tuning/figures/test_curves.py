from __future__ import annotations

from genkidama.tuning.figures.curves import learning_curves
from genkidama.tuning.findings import read
from tests.tuning.studies import make_study


def test_one_score_that_diverged_does_not_hide_the_others() -> None:
    findings = read(
        make_study(
            trials=20,
            phases=2,
            score=lambda p, phase, rng: -1e9 if rng.random() < 0.04 else float(rng.normal()),
        )
    )
    assert min(phase.score for trial in findings.trials for phase in trial.phases) == -1e9
    figure = learning_curves(findings)
    assert figure is not None
    for axes in figure.axes:
        assert -20 < axes.get_ylim()[0] < -2 and axes.get_ylim()[1] < 20
        assert any("below" in text.get_text() for text in axes.texts)
