"""The knowledge database of a search: an Optuna study with every trial, its settings and reports.

Laws of this file:
- `records.py` says what stands in a study and how it is called.
- The database is written behind the replies: no node waits for it. What is not written yet is
  written later, in order; writing the same thing twice changes nothing.
- One thread talks to the database; it may be slow or away, and the search goes on.
"""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.plugins.hypertrick.findings import read_trials
from genkidama.plugins.hypertrick.records import (
    OPTUNAS_STATES,
    PhaseRecord,
    SearchRecord,
    State,
    TrialRecord,
)
from genkidama.plugins.hypertrick.search import SearchTrial
from genkidama.plugins.hypertrick.space import Dimension, parse_space
from genkidama.plugins.hypertrick.storage import (
    first_line,
    open_database,
    storage_url,
    unreachable,
    without_password,
)
from genkidama.runtime.import_strings import is_import_string, load_object

# After `storage`, which says what to install if they are missing.
import optuna  # isort: skip
from sqlalchemy.exc import SQLAlchemyError  # isort: skip

__all__ = ["Study"]


class Study:
    """The study of one search. All methods may block; `sample` and `write` have a thread for that.

    Args:
        experiment: with a `[search]`.
        out: the run's directory; its name is the study's.
        resumes: whether the run is there already. A study that exists although the run does not
            is another one's.

    Raises:
        ConfigurationError: the study searches another space, or belongs to another run; no such
            sampler or driver.
        EnvironmentFailure: the database cannot be reached.
    """

    def __init__(self, experiment: Experiment, out: Path, resumes: bool) -> None:
        assert experiment.search is not None
        self.url = storage_url(experiment.search.storage, out)
        self.name = out.absolute().name
        self._settings = experiment.search
        self._seed = experiment.seed
        self._space = parse_space(experiment.search.space)
        self._distributions = {
            key: distribution(dimension) for key, dimension in self._space.items()
        }
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="study")
        self._written: dict[int, int] = {}
        #: A trial whose settings could not all be drawn yet.
        self._asked: optuna.trial.Trial | None = None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        #: The URL as people may see it: without a password.
        self.shown = without_password(self.url)
        self._database = open_database(self.url)
        self._storage = optuna.storages.get_storage(self._database)
        try:
            begun = [
                summary.study_name
                for summary in optuna.get_all_study_summaries(self._storage)
                if summary.n_trials
            ]
            if self.name in begun and not resumes:
                raise ConfigurationError(
                    f"search.storage = {self.shown!r}: holds a study {self.name!r} of another run; "
                    "choose another directory name with --out"
                )
            self._study = optuna.create_study(
                storage=self._storage,
                study_name=self.name,
                direction="maximize",
                load_if_exists=True,
            )
            self._claim(experiment)
            self._study.sampler = self._sampler()
        except BaseException as error:
            self.close()
            if isinstance(error, SQLAlchemyError | optuna.exceptions.OptunaError):
                raise unreachable(self.url, error) from None
            raise

    def trials(self) -> list[TrialRecord]:
        """All trials that were begun, by number.

        Raises:
            ConfigurationError: a trial was written in another way than this version's.
        """
        for known in self._study.get_trials(
            deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)
        ):
            if known.params.keys() != self._distributions.keys():
                # A parent was killed while it sampled.
                self._suggest(optuna.trial.Trial(self._study, known._trial_id))
        # A trial that is WAITING has only been asked for; `sample` will give it.
        return [
            trial for trial in read_trials(self._study, self._space) if trial.state != "waiting"
        ]

    async def sample(self) -> tuple[int, dict[str, Any]]:
        """A new trial: its number and its settings, from the sampler.

        Raises:
            EnvironmentFailure: the database cannot be reached, or the sampler fails.
        """
        number, params = await self._in_thread(self._sample)
        return number, params

    def write(self, trials: list[tuple[SearchTrial, str]]) -> Awaitable[None]:
        """Brings the study up to date with these trials; with each comes its checkpoint's path.

        They are written as they are at the call. Whoever awaits that may have to wait for a minute
        if another program has locked the database.

        Raises:
            EnvironmentFailure: the database cannot be reached; try again with the same trials.
        """
        copies = [
            (trial.number or 0, list(trial.phases), trial.state, trial.stop, checkpoint)
            for trial, checkpoint in trials
        ]
        return self._in_thread(self._write, copies)

    def close(self) -> None:
        """Waits for what is under way."""
        self._thread.shutdown()
        self._storage.remove_session()
        self._database.engine.dispose()

    async def _in_thread(self, work: Any, *arguments: Any) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        except Exception as error:  # a sampler may be anybody's
            raise EnvironmentFailure(
                f"the study {self.name!r} in {self.shown!r}: {first_line(error)}"
            ) from None

    def _sample(self) -> tuple[int, dict[str, Any]]:
        if self._asked is None:
            self._asked = self._study.ask()
        number, params = self._asked.number, self._suggest(self._asked)
        self._asked = None
        return number, params

    def _suggest(self, trial: optuna.trial.Trial) -> dict[str, Any]:
        """The trial's settings; those that it has not got yet come from the sampler."""
        return {
            key: self._space[key].value(trial._suggest(key, distribution))
            for key, distribution in self._distributions.items()
        }

    def _write(self, trials: list[tuple[int, list[PhaseRecord], State, str, str]]) -> None:
        for number, phases, state, reason, checkpoint in trials:
            identity = self._storage.get_trial_id_from_study_id_trial_number(
                self._study._study_id, number
            )
            if self._storage.get_trial(identity).state.is_finished():
                continue
            for record in phases[self._written.get(number, 0) :]:
                self._storage.set_trial_intermediate_value(
                    identity, record.phase, math.nan if record.metric is None else record.metric
                )
            self._storage.set_trial_user_attr(
                identity, "phases", [msgspec.to_builtins(record) for record in phases]
            )
            if checkpoint:
                self._storage.set_trial_user_attr(identity, "checkpoint", checkpoint)
            self._written[number] = len(phases)
            if state in OPTUNAS_STATES:
                self._storage.set_trial_user_attr(identity, "reason", reason)
                metric = phases[-1].metric if phases else None
                self._study.tell(
                    number,
                    metric if state == "completed" else None,
                    state=optuna.trial.TrialState[OPTUNAS_STATES[state]],
                    skip_if_finished=True,
                )
                del self._written[number]

    def _claim(self, experiment: Experiment) -> None:
        """Writes down what is searched, or checks that it is what was searched before."""
        facts: dict[str, Any] = msgspec.to_builtins(SearchRecord.of(experiment))
        before = self._study.user_attrs.get("genkidama")
        if before is None and self._study.get_trials(deepcopy=False):
            raise ConfigurationError(
                f"search.storage = {self.shown!r}: the study {self.name!r} "
                "was not made by Genkidama; choose another name with --out"
            )
        for key in ("space", "phases", "phase_unit", "phase_length"):
            if before is not None and before[key] != facts[key]:
                raise ConfigurationError(
                    f"the study {self.name!r} in {self.shown!r} belongs to another search: "
                    f"its {key} {_difference(before[key], facts[key])}; "
                    "choose another directory with --out"
                )
        if before != facts:
            self._study.set_user_attr("genkidama", facts)

    def _sampler(self) -> optuna.samplers.BaseSampler:
        # A search that goes on must not draw the same settings again.
        seed = (self._seed + 7919 * len(self._study.get_trials(deepcopy=False))) % 2**32
        name, options = self._settings.sampler, self._settings.sampler_options
        kind: Any
        if is_import_string(name):
            kind = load_object(name, "search.sampler")
        else:
            kind = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}[
                name
            ]
            options = ({"multivariate": True} if name == "tpe" else {}) | {"seed": seed} | options
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                sampler = kind(**options)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"search.sampler = {name!r} with search.sampler_options = {options!r}: {error}"
            ) from None
        if not isinstance(sampler, optuna.samplers.BaseSampler):
            raise ConfigurationError(
                f"search.sampler = {name!r}: "
                "is no sampler of Optuna's (optuna.samplers.BaseSampler)"
            )
        return sampler


def distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    """The values of a setting, as Optuna describes them."""
    if dimension.choices is not None:
        return optuna.distributions.CategoricalDistribution(dimension.labels)
    assert dimension.low is not None
    assert dimension.high is not None
    if dimension.whole:
        step = int(dimension.step or 1)
        high = dimension.low + (dimension.high - dimension.low) // step * step
        return optuna.distributions.IntDistribution(
            int(dimension.low), int(high), dimension.log, step
        )
    with warnings.catch_warnings():
        # A range that is no multiple of its step is cut, as documented.
        warnings.simplefilter("ignore")
        return optuna.distributions.FloatDistribution(
            float(dimension.low), float(dimension.high), dimension.log, dimension.step
        )


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *now]:
            if before.get(key) != now.get(key):
                return f"had {key} = {before.get(key)!r}, and now has {now.get(key)!r}"
    return f"was {before!r}, and now is {now!r}"
