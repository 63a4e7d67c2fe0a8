"""How much each searched setting matters to a random forest over all trials, stopped ones included.

HyperTrick's paper, §7.2: a forest that maps a configuration to the last score that was reported,
chosen among several by cross-validation. Optuna's own importances see completed trials only. A
setting that decides which trials are stopped looks harmless there: all trials that are left agree
on it.

Laws of this file:
- A trial counts once it has ended. A failed one counts with the worst score that any trial has
  reported.
- A share says how much worse the forest predicts trials that it has not seen if that setting is
  shuffled among them. The paper takes the impurity within the trees, which gives a setting with
  many values a share though it has no effect.
- R² is that of predictions for trials that the forest has not seen. It is the best of a few
  forests', so a little too high.
- Same findings and seed, same shares.
"""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from genkidama.errors import ConfigurationError
from genkidama.formats import plural

if TYPE_CHECKING:
    import optuna

    from genkidama.hypertrick.space import Dimension
    from genkidama.tuning.findings import Findings

__all__ = ["Importances", "importances"]

#: With fewer trials than this the shares mean little.
ENOUGH = 10

#: Without this many there is no cross-validation.
_LEAST = 4

_FOLDS = 5
_TREES = 40
_SHUFFLES = 8

_Array: TypeAlias = npt.NDArray[np.float64]

#: Trials to learn from and trials to predict, by their rows.
_Folds: TypeAlias = list[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]


@dataclass(frozen=True)
class Importances:
    """What the forest says."""

    #: By dotted setting, largest first. They add up to 1, or are all 0 if no setting says anything
    #: about the score.
    shares: dict[str, float]
    #: Optuna's default (PED-ANOVA, of the completed trials only); empty if it was not asked, or
    #: they are fewer than two.
    optuna: dict[str, float]
    #: Cross-validated: 1 is a perfect prediction, 0 no better than the mean. NaN if all scores are
    #: equal.
    r2: float
    #: How many trials the forest has learned from.
    trials: int
    #: Why the shares mean little; empty if they mean something.
    caution: str


def importances(
    findings: Findings, seed: int = 0, study: optuna.Study | None = None
) -> Importances | None:
    """The settings' importances; None if fewer than 4 trials have ended with anything to learn.

    Takes about two seconds for 100 trials on one core.

    Args:
        findings: of the search.
        seed: of the forests, the folds and the shuffling.
        study: the one that the findings are of, to ask Optuna for its importances too.

    Raises:
        ConfigurationError: scikit-learn is not installed.
    """
    x, y = _table(findings)
    if len(y) < _LEAST:
        return None
    names = list(findings.space)
    asked = study is not None and len(findings.of_state("completed")) > 1
    optunas = _optuna(study, names) if asked else {}
    if np.ptp(y) == 0.0:
        return Importances(
            shares=dict.fromkeys(names, 0.0),
            optuna=optunas,
            r2=math.nan,
            trials=len(y),
            caution="all scores are equal: nothing can be learned from them",
        )
    r2, harm = _learned(x, y, seed)
    shares = harm / harm.sum() if harm.sum() > 0 else harm
    order = sorted(range(len(names)), key=lambda index: -shares[index])
    return Importances(
        shares={names[index]: float(shares[index]) for index in order},
        optuna=optunas,
        r2=r2,
        trials=len(y),
        caution=_caution(len(y), r2),
    )


def _learned(x: _Array, y: _Array, seed: int) -> tuple[float, _Array]:
    """The R² of the best of a few forests, and by setting what shuffling that setting costs."""
    try:  # scikit-learn takes a second to import
        from sklearn.ensemble import RandomForestRegressor  # type: ignore[import-untyped]
        from sklearn.inspection import permutation_importance  # type: ignore[import-untyped]
        from sklearn.model_selection import KFold  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigurationError(
            "importances need scikit-learn: pip install 'genkidama[search]'"
        ) from None
    settings = x.shape[1]
    # At least two trials in a fold: one alone cannot be shuffled.
    folds: _Folds = list(KFold(min(_FOLDS, len(y) // 2), shuffle=True, random_state=seed).split(x))
    at_a_split = sorted({1.0, max(1.0, settings / 3) / settings})
    best: tuple[float, list[Any]] = (-math.inf, [])
    for leaf, share in itertools.product((1, 3, 8), at_a_split):
        forests = [
            RandomForestRegressor(
                _TREES, min_samples_leaf=leaf, max_features=share, random_state=seed, n_jobs=1
            ).fit(x[train], y[train])
            for train, _ in folds
        ]
        error = sum(
            float(np.sum((forest.predict(x[test]) - y[test]) ** 2))
            for forest, (_, test) in zip(forests, folds, strict=True)
        )
        r2 = 1.0 - error / float(np.sum((y - y.mean()) ** 2))
        best = max(best, (r2, forests), key=lambda found: found[0])
    r2, forests = best
    harm = sum(
        len(test)
        * permutation_importance(
            forest,
            x[test],
            y[test],
            scoring="neg_mean_squared_error",
            n_repeats=_SHUFFLES,
            random_state=seed,
        ).importances_mean
        for forest, (_, test) in zip(forests, folds, strict=True)
    )
    return r2, np.maximum(0.0, harm)


def _caution(trials: int, r2: float) -> str:
    reasons = []
    if trials < ENOUGH:
        reasons.append(f"only {plural(trials, 'trial')} ended, and at least {ENOUGH} are needed")
    if r2 < 0.0:
        reasons.append("R² is below 0, so the forest predicts worse than the mean score does")
    return " and ".join(reasons)


def _table(findings: Findings) -> tuple[_Array, _Array]:
    """A row of settings and a score for each trial that has ended."""
    reported = [
        phase.score
        for trial in findings.trials
        for phase in trial.phases
        if not math.isnan(phase.score)
    ]
    ended = [trial for trial in findings.ended if set(findings.space) <= set(trial.params)]
    if not reported or not ended:
        return np.empty((0, len(findings.space))), np.empty(0)
    x = [
        [_number(dimension, trial.params[key]) for key, dimension in findings.space.items()]
        for trial in ended
    ]
    y = [min(reported) if math.isnan(trial.score) else trial.score for trial in ended]
    return np.array(x), np.array(y)


def _number(dimension: Dimension, value: Any) -> float:
    """A choice as its place among the choices: trees take any order of them apart."""
    if dimension.choices is None:
        return float(value)
    place = dimension.place(value)
    return -1.0 if place is None else float(place)


def _optuna(study: optuna.Study | None, names: list[str]) -> dict[str, float]:
    """What optuna-dashboard shows as importances; of at least two completed trials."""
    import optuna

    assert study is not None
    with warnings.catch_warnings():  # it warns of few trials, as the report does itself
        warnings.simplefilter("ignore")
        shares = optuna.importance.get_param_importances(study)
    return {name: float(shares[name]) for name in names if name in shares}
