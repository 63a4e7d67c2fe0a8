"""What the order of the reports did, beside slow and obvious oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from genkidama.tuning import report
from genkidama.tuning.bias import _listed, order_bias
from genkidama.tuning.findings import Findings, read
from tests.tuning.studies import COMPLETE, PRUNED, make_study, phase, written


def test_order_bias_by_hand() -> None:
    """r = 1/4: the lower half.

    Trial 0 passed as the first though it is the worst; trial 2 was stopped against 5 and 6 only.
    """
    findings = written(
        (
            COMPLETE,
            [phase(0, "a", 0, 1, 1.0, report=0), phase(1, "a", 1, 2, 1.0, "none", report=1)],
        ),
        (
            COMPLETE,
            [phase(0, "a", 2, 3, 6.0, report=2), phase(1, "a", 3, 4, 6.0, "none", report=3)],
        ),
        (PRUNED, [phase(0, "a", 4, 5, 4.0, "selection", verdict="stop", report=4)]),
        (PRUNED, [phase(0, "a", 5, 6, 3.0, "selection", verdict="stop", report=5)]),
        (PRUNED, [phase(0, "a", 6, 7, 2.0, "selection", verdict="stop", report=6)]),
    )
    bias = order_bias(findings)
    assert bias.lucky == ((0, 0),) and bias.unlucky == ((2, 0), (3, 0)) and bias.trials == 5
    assert bias.correlation == pytest.approx(spearmanr([0, 1, 2, 3, 4], [2, 2, 1, 1, 1]).statistic)
    told = " ".join(report.text(findings).split())
    assert (
        "Completed, but passed at least one phase only because they were early: trial 0 (phase 0)."
        in told
    )
    assert (
        "would pass against all reports of the phase: trial 2 (phase 0), trial 3 (phase 0)." in told
    )


def slow_order_bias(findings: Findings) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """As the sentences say it, with NumPy's quantile."""
    lucky, unlucky = [], []
    for number in range(findings.settings.phases):
        reports = [(t, p) for t in findings.trials for p in t.phases if p.phase == number]
        for trial, report_ in reports:
            scores = [-1e6 if math.isnan(p.score) else p.score for _, p in reports]
            below = (-1e6 if math.isnan(report_.score) else report_.score) < np.quantile(
                scores, math.sqrt(findings.settings.eviction_rate)
            )
            if report_.mode == "collection" and below:
                lucky.append((trial.number, number))
            if report_.mode == "selection" and report_.verdict == "stop" and not below:
                unlucky.append((trial.number, number))
    return lucky, unlucky


@pytest.mark.parametrize("cohort", [None, 8])
def test_order_bias_is_what_its_sentences_say(cohort: int | None) -> None:
    unlucky_ones = 0
    for seed in range(8):
        findings = read(
            make_study(
                trials=30,
                seed=seed,
                eviction_rate=0.2,
                settings={"cohort": cohort},
                score=lambda p, n, rng: float(rng.normal()),
            )
        )
        bias = order_bias(findings)
        assert (list(bias.lucky), list(bias.unlucky)) == slow_order_bias(findings)
        ended = findings.of_state("completed", "stopped")
        oracle = spearmanr([t.number for t in ended], [t.phases_done for t in ended]).statistic
        assert bias.correlation == pytest.approx(oracle)
        assert bias.lucky
        unlucky_ones += len(bias.unlucky)
    assert unlucky_ones


@pytest.mark.parametrize("method", ["asha", "hyperband"])
def test_halving_is_judged_again_by_the_best_of_a_bracket(method: str) -> None:
    """As the sentences say it: with η = 2, the better half of all reports of a rung goes on."""
    seen = 0
    for seed in range(6):
        findings = read(
            make_study(
                trials=40,
                phases=8,
                seed=seed,
                method=method,
                settings={"reduction_factor": 2},
                score=lambda p, n, rng: float(rng.normal()),
            )
        )
        # Of 8 phases with η = 2: 8, ⌈4/3·4⌉, ⌈4/2·2⌉ and 4 trials.
        bracket = {"asha": [0], "hyperband": [0] * 8 + [1] * 6 + [2] * 4 + [3] * 4}[method]
        lucky, unlucky = [], []
        for rung in (0, 1, 3):
            for trial, report_ in sorted(
                findings.reports_of(rung), key=lambda found: found[0].number
            ):
                mine = bracket[trial.number % len(bracket)]
                scores = [
                    -math.inf if math.isnan(p.score) else p.score
                    for other, p in findings.reports_of(rung)
                    if bracket[other.number % len(bracket)] == mine
                ]
                good = report_.score >= sorted(scores)[-max(1, len(scores) // 2)]
                if report_.mode == "selection" and good == (report_.verdict == "stop"):
                    (unlucky if good else lucky).append((trial.number, rung))
        bias = order_bias(findings)
        assert (list(bias.lucky), list(bias.unlucky)) == (lucky, unlucky)
        seen += len(lucky) * len(unlucky)
    assert seen


def test_equal_metrics_are_neither_lucky_nor_below() -> None:
    bias = order_bias(
        read(make_study(failing=(), not_a_number=(), score=lambda params, n, rng: 1.0))
    )
    assert bias.lucky == () and len(bias.unlucky) > 0


def test_phases_in_a_row_are_written_as_a_range() -> None:
    assert (
        _listed([(3, 0), (3, 2), (3, 3), (3, 4), (1, 7), (1, 8)])
        == "trial 1 (phases 7–8), trial 3 (phases 0, 2–4)"
    )
    assert _listed([]) == "none"


def test_nobody_was_lucky_where_nothing_was_decided() -> None:
    bias = order_bias(read(make_study(method="random", trials=5)))
    assert (bias.lucky, bias.unlucky, bias.trials) == ((), (), 5) and math.isnan(bias.correlation)


def test_with_adaptive_decisions_are_judged_by_what_shall_pass() -> None:
    """8 trials, r = 1/2: the adaptive rule means to let 4 of 8 pass, √r would let through 3.

    The threshold is half of the 7 others: a trial that is better than 4 of them is unlucky if it
    was stopped.
    """
    scores = [5.0, 4.0, 6.0, 7.0, 3.0, 2.0, 1.0, 4.5]
    stopped = {1, 4, 7}
    trials = [
        (
            PRUNED if number in stopped else COMPLETE,
            [
                phase(
                    0,
                    "a",
                    number,
                    number + 1,
                    score,
                    "selection" if number > 1 else "collection",
                    verdict="stop" if number in stopped else "continue",
                    report=number,
                )
            ],
        )
        for number, score in enumerate(scores)
    ]
    plain = written(*trials, eviction_rate=0.5, workers=8)
    adaptive = written(*trials, eviction_rate=0.5, workers=8, adaptive=True)
    assert order_bias(plain).unlucky == ()  # below the 71 % quantile
    assert order_bias(adaptive).unlucky == ((7, 0),)
