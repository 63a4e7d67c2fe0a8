"""How much each searched setting matters, by a random forest over all trials, the stopped ones included.

HyperTrick's paper, §7.2: a forest that maps a configuration to the last score that was reported, chosen among several by
cross-validation. Optuna's own importances see completed trials only; a setting that decides who is stopped looks
harmless there, as all who are left agree on it.

Laws of this file:
- A trial counts once it has ended. A failed one counts with the worst score that any trial has reported.
- A share says how much worse the forest predicts trials it has not seen when that setting is shuffled among them. The paper
  takes the impurity within the trees it has grown, which gives a setting with many values a share though it has no effect.
- R² is that of predictions for trials the forest has not seen. It is the best of a few forests', so a little too high.
- Same findings and seed, same shares.
"""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genkidama.errors import ConfigurationError

if TYPE_CHECKING:
    import optuna

    from genkidama.hypertrick.space import Dimension
    from genkidama.tuning.findings import Findings, Trial

__all__ = ["Importances", "importances"]

#: With fewer trials than this the shares mean little.
ENOUGH = 10

#: Without this many there is no cross-validation.
_LEAST = 4

_FOLDS, _TREES, _SHUFFLES = 5, 40, 8


@dataclass(frozen=True)
class Importances:
    """What the forest says."""

    #: By dotted setting, largest first; they add up to 1, or are all 0 if no setting says anything about the score.
    shares: dict[str, float]
    #: Optuna's default (PED-ANOVA, of the completed trials only), or empty if it was not asked or they are fewer than two.
    optuna: dict[str, float]
    #: Cross-validated: 1 is a perfect prediction, 0 no better than the mean. NaN if all scores are equal.
    r2: float
    #: So many trials were learned from.
    trials: int
    #: The forest that was chosen, for the reader.
    forest: str
    #: Why the shares mean little; empty if they mean something.
    caution: str


def importances(
    findings: Findings, seed: int = 0, study: optuna.Study | None = None
) -> Importances | None:
    """The settings' importances, or None if fewer than 4 trials have ended with anything to learn from.

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
    optunas = (
        _optuna(study, names)
        if study is not None and len(findings.of_state("complete")) > 1
        else {}
    )
    if np.ptp(y) == 0.0:
        return Importances(
            dict.fromkeys(names, 0.0),
            optunas,
            math.nan,
            len(y),
            "none",
            "all scores are equal: nothing can be learned from them",
        )
    try:
        from sklearn.base import clone  # type: ignore[import-untyped]
        from sklearn.ensemble import RandomForestRegressor  # type: ignore[import-untyped]
        from sklearn.model_selection import KFold  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigurationError(
            "importances need scikit-learn: pip install 'genkidama[search]'"
        ) from None
    folds = list(KFold(min(_FOLDS, len(y)), shuffle=True, random_state=seed).split(x))
    best: tuple[float, str, list[Any]] | None = None
    for leaf, share in itertools.product(
        (1, 3, 8), sorted({1.0, max(1.0, len(names) / 3) / len(names)})
    ):
        forest = RandomForestRegressor(
            _TREES, min_samples_leaf=leaf, max_features=share, random_state=seed, n_jobs=1
        )
        forests = [clone(forest).fit(x[train], y[train]) for train, _ in folds]
        error = sum(
            float(np.sum((fitted.predict(x[test]) - y[test]) ** 2))
            for fitted, (_, test) in zip(forests, folds, strict=True)
        )
        r2 = 1.0 - error / float(np.sum((y - y.mean()) ** 2))
        if best is None or r2 > best[0]:
            best = (
                r2,
                f"{_TREES} trees, at least {leaf} trials in a leaf, {share:.0%} of the settings at a split",
                forests,
            )
    assert best is not None
    r2, described, forests = best
    harm = np.maximum(
        0.0,
        sum(
            _harm(forest, x, y, test, seed)
            for forest, (_, test) in zip(forests, folds, strict=True)
        ),
    )
    shares = harm / harm.sum() if harm.sum() > 0 else harm
    order = sorted(range(len(names)), key=lambda index: -shares[index])
    return Importances(
        {names[index]: float(shares[index]) for index in order},
        optunas,
        r2,
        len(y),
        described,
        _caution(len(y), r2),
    )


def _caution(trials: int, r2: float) -> str:
    reasons = []
    if trials < ENOUGH:
        reasons.append(f"only {trials} trials have ended, and at least {ENOUGH} are needed")
    if r2 < 0.0:
        reasons.append("R² is below 0, so the forest predicts worse than the mean score does")
    return " and ".join(reasons)


def _table(findings: Findings) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """A row of settings and a score for each trial that has ended."""
    reported = [
        phase.score
        for trial in findings.trials
        for phase in trial.phases
        if not math.isnan(phase.score)
    ]
    ended = [
        trial
        for trial in findings.of_state("complete", "stopped", "failed")
        if set(findings.space) <= set(trial.params)
    ]
    if not reported or not ended:
        return np.empty((0, len(findings.space))), np.empty(0)
    x = [
        [_number(dimension, trial.params[key]) for key, dimension in findings.space.items()]
        for trial in ended
    ]
    return np.array(x), np.array([_score(trial, min(reported)) for trial in ended])


def _score(trial: Trial, worst: float) -> float:
    return worst if math.isnan(trial.score) else trial.score


def _number(dimension: Dimension, label: Any) -> float:
    """A choice as its place among the choices: trees take any order of them apart."""
    if dimension.choices is None:
        return float(label)
    return float(dimension.labels.index(label)) if label in dimension.labels else -1.0


def _harm(
    forest: Any, x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], unseen: Any, seed: int
) -> npt.NDArray[np.float64]:
    """By setting, what the squared errors of the unseen trials gain if that setting comes from another trial instead."""
    rng = np.random.default_rng(seed)
    honest = np.sum((forest.predict(x[unseen]) - y[unseen]) ** 2)
    shuffled = np.tile(x[unseen], (_SHUFFLES * x.shape[1], 1)).reshape(
        x.shape[1], _SHUFFLES, len(unseen), x.shape[1]
    )
    for column in range(x.shape[1]):
        shuffled[column, :, :, column] = rng.choice(x[:, column], (_SHUFFLES, len(unseen)))
    predicted = forest.predict(shuffled.reshape(-1, x.shape[1])).reshape(
        x.shape[1], _SHUFFLES, len(unseen)
    )
    return np.asarray(np.sum((predicted - y[unseen]) ** 2, axis=2).mean(axis=1) - honest)


def _optuna(study: optuna.Study, names: list[str]) -> dict[str, float]:
    """What optuna-dashboard shows as importances; of at least two completed trials."""
    import optuna

    with warnings.catch_warnings():  # it warns of few trials, as the report does itself
        warnings.simplefilter("ignore")
        shares = optuna.importance.get_param_importances(study)
    return {name: float(shares[name]) for name in names if name in shares}
