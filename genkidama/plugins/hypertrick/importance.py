"""Importance of each searched setting for the score: Optuna's fANOVA of all trials that have ended.

Optuna sees completed trials only. A setting that decides which trials are stopped looks harmless
there, since all trials that are left agree on it. So it is asked of a copy of the study in which
every trial has completed with its last score, and a failed one with the worst that was reported.
"""

from __future__ import annotations

import math
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from genkidama.config.formatting import plural
from genkidama.errors import ConfigurationError

if TYPE_CHECKING:
    import optuna

    from genkidama.plugins.hypertrick.findings import StudySnapshot

__all__ = ["ENOUGH", "Importances", "ended_study", "importances"]

#: With fewer trials than this the shares mean little.
ENOUGH = 10

#: With fewer than this nothing is learned.
_LEAST = 4

_TREES = 64


@dataclass(frozen=True)
class Importances:
    """Shares of the variance of the score."""

    #: By dotted setting, largest first. They add up to 1, or are all 0 if all scores are equal.
    shares: dict[str, float]
    #: How many trials were learned from.
    trials: int
    #: Why the shares mean little; empty if they mean something.
    caution: str = ""


def importances(findings: StudySnapshot, seed: int = 0) -> Importances | None:
    """The settings' importances; None if fewer than 4 trials have ended with anything to learn.

    Args:
        findings: of the search.
        seed: of the trees; the same seed gives the same shares.

    Raises:
        ConfigurationError: scikit-learn is not installed.
    """
    study = ended_study(findings)
    scores = [trial.value for trial in study.get_trials(deepcopy=False)]
    if len(scores) < _LEAST:
        return None
    if len(set(scores)) == 1:
        return Importances(dict.fromkeys(findings.space, 0.0), len(scores), "all scores are equal")
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            evaluator = FanovaImportanceEvaluator(n_trees=_TREES, seed=seed)
            shares = get_param_importances(study, evaluator=evaluator)
    except ImportError:
        raise ConfigurationError(
            "importances need scikit-learn: pip install 'genkidama[search]'"
        ) from None
    count = plural(len(scores), "trial")
    few = f"only {count} ended, and at least {ENOUGH} are needed" if len(scores) < ENOUGH else ""
    return Importances({name: float(share) for name, share in shares.items()}, len(scores), few)


def ended_study(findings: StudySnapshot, failed: bool = True) -> optuna.Study:
    """A study in memory in which the trials that have ended completed with their last scores.

    Args:
        failed: counts failed trials, with the worst score of all reports; else takes every trial
            that has a score.
    """
    import optuna

    from genkidama.plugins.hypertrick.study import distribution

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    optuna.logging.set_verbosity(before)
    reported = [phase.score for trial in findings.trials for phase in trial.phases]
    worst = min((score for score in reported if not math.isnan(score)), default=None)
    distributions = {key: distribution(dimension) for key, dimension in findings.space.items()}
    for trial in findings.ended if failed else findings.ranking:
        if worst is None or not distributions.keys() <= trial.params.keys():
            continue
        score = worst if math.isnan(trial.score) else trial.score
        params = {key: one.label(trial.params[key]) for key, one in findings.space.items()}
        with suppress(ValueError):  # somebody else's trial, with values out of the space
            study.add_trial(
                optuna.trial.create_trial(value=score, params=params, distributions=distributions)
            )
    return study
