"""The knowledge database of a search: an Optuna study that keeps every trial, its settings and its reports.

    study.user_attrs["genkidama"]     the search's settings and the experiment
    trial.params                      dotted settings
    trial.intermediate_values         metric by phase, from 0
    trial.state                       COMPLETE, PRUNED (stopped), FAIL, RUNNING
    trial.user_attrs["phases"]        one `PhaseRecord` a phase: who trained it, when, and why it went on
    trial.user_attrs["checkpoint"]    the trial's newest checkpoint, relative to the run's directory
    trial.user_attrs["reason"]        why it has ended

Laws of this file:
- The database is written behind the replies: no node waits for it. What is not written yet is written
  later, in order; writing the same thing twice changes nothing.
- One thread talks to the database; it may be slow or away, and the search goes on.
"""

from __future__ import annotations

import asyncio
import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import genkidama
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.experiment import Experiment
from genkidama.hypertrick.space import Dimension, parse_space
from genkidama.system.plugs import is_plug, load_plug
from genkidama.system.run import STUDY
from genkidama.tuning.findings import without_password
from genkidama.tuning.service import PhaseRecord, SearchTrial

try:
    import optuna
    from sqlalchemy.event import listen
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError
except ImportError as error:
    raise ConfigurationError(
        f"a search needs Optuna ({error}); install it: pip install 'genkidama[search]'"
    ) from None

__all__ = ["KnownTrial", "Study", "storage_url"]

#: How long SQLite waits for somebody else who writes, a dashboard for instance.
_SQLITE_SECONDS = 60.0

_STATES = {
    "completed": optuna.trial.TrialState.COMPLETE,
    "stopped": optuna.trial.TrialState.PRUNED,
    "failed": optuna.trial.TrialState.FAIL,
}


@dataclass(frozen=True)
class KnownTrial:
    """What the study knows of one trial."""

    number: int
    params: dict[str, Any]
    #: `"completed"`, `"stopped"`, `"failed"` or `"running"`.
    state: str
    phases: list[PhaseRecord]


def storage_url(storage: str, out: Path) -> str:
    """The study's storage: as the experiment says, or a SQLite file in the run's directory."""
    return storage or f"sqlite:///{out.absolute() / STUDY}"


class Study:
    """The study of one search. All methods may block; `sample` and `write` do so in a thread of their own.

    Args:
        experiment: with a `[search]`.
        out: the run's directory; its name is the study's.
        resumes: whether the run is there already. A study that exists although the run does not is another one's.

    Raises:
        ConfigurationError: the study searches another space, or belongs to another run; no such sampler or driver.
        EnvironmentFailure: the database cannot be reached.
    """

    def __init__(self, experiment: Experiment, out: Path, resumes: bool) -> None:
        assert experiment.search is not None
        self.url, self.name = storage_url(experiment.search.storage, out), out.absolute().name
        self._settings, self._seed = experiment.search, experiment.seed
        self._space = parse_space(experiment.search.space)
        self._distributions = {
            key: _distribution(dimension) for key, dimension in self._space.items()
        }
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="study")
        self._written: dict[int, int] = {}
        #: A trial whose settings could not all be drawn yet.
        self._asked: optuna.trial.Trial | None = None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        #: The URL as people may see it: without a password.
        self.shown = without_password(self.url)
        self._database = _open(self.url, self.shown)
        self._storage = optuna.storages.get_storage(self._database)
        try:
            begun = [
                summary.study_name
                for summary in optuna.get_all_study_summaries(self._storage)
                if summary.n_trials
            ]
            if self.name in begun and not resumes:
                raise ConfigurationError(
                    f"search.storage = {self.shown!r}: holds a study {self.name!r} of another run; choose another directory name with --out"
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
                raise _unreachable(self.shown, error) from None
            raise

    def trials(self) -> list[KnownTrial]:
        """All trials that were begun, by number."""
        for known in self._study.get_trials(
            deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)
        ):
            if (
                known.params.keys() != self._distributions.keys()
            ):  # a parent was killed while it sampled
                self._suggest(optuna.trial.Trial(self._study, known._trial_id))
        return [
            KnownTrial(
                trial.number,
                {key: self._space[key].value(label) for key, label in trial.params.items()},
                next((name for name, state in _STATES.items() if state is trial.state), "running"),
                msgspec.convert(trial.user_attrs.get("phases", []), list[PhaseRecord]),
            )
            for trial in self._study.get_trials(deepcopy=False)
            if trial.state
            is not optuna.trial.TrialState.WAITING  # somebody wishes for it; `sample` will give it
        ]

    async def sample(self) -> tuple[int, dict[str, Any]]:
        """A new trial: its number and its settings, from the sampler.

        Raises:
            EnvironmentFailure: the database cannot be reached, or the sampler fails.
        """
        number, params = await self._in_thread(self._sample)
        return number, params

    async def write(self, trials: list[tuple[SearchTrial, str]]) -> None:
        """Brings the study up to date with these trials; with each comes its checkpoint's path.

        Raises:
            EnvironmentFailure: the database cannot be reached; try again with the same trials.
        """
        copies = [
            (trial.number or 0, list(trial.phases), trial.state, trial.stop, checkpoint)
            for trial, checkpoint in trials
        ]
        await self._in_thread(self._write, copies)

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
                f"the study {self.name!r} in {self.shown!r}: {_problem(error)}"
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

    def _write(self, trials: list[tuple[int, list[PhaseRecord], str, str, str]]) -> None:
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
            if state in _STATES:
                self._storage.set_trial_user_attr(identity, "reason", reason)
                metric = phases[-1].metric if phases else None
                self._study.tell(
                    number,
                    metric if state == "completed" else None,
                    state=_STATES[state],
                    skip_if_finished=True,
                )
                del self._written[number]

    def _claim(self, experiment: Experiment) -> None:
        """Writes down what is searched, or checks that it is what was searched before."""
        settings = self._settings
        facts = {
            "version": genkidama.__version__,
            "method": settings.method,
            "workers": settings.trials,
            "phases": settings.phases,
            "eviction_rate": settings.eviction_rate,
            "decide_after": list(settings.decide_after),
            "cohort": settings.cohort or None,
            "adaptive": settings.adaptive,
            "sampler": settings.sampler,
            "phase_unit": settings.unit,
            "phase_length": settings.length,
            "space": {
                key: msgspec.to_builtins(dimension) for key, dimension in self._space.items()
            },
            "experiment": {
                key: value for key, value in experiment.to_dict().items() if key != "search"
            },
        }
        before = self._study.user_attrs.get("genkidama")
        if before is None and self._study.get_trials(deepcopy=False):
            raise ConfigurationError(
                f"search.storage = {self.shown!r}: the study {self.name!r} was not made by Genkidama; choose another name with --out"
            )
        for key in ("space", "phases", "phase_unit", "phase_length"):
            if before is not None and before[key] != facts[key]:
                raise ConfigurationError(
                    f"the study {self.name!r} in {self.shown!r} belongs to another search: "
                    f"its {key} {_difference(before[key], facts[key])}; choose another directory with --out"
                )
        if before != facts:
            self._study.set_user_attr("genkidama", facts)

    def _sampler(self) -> optuna.samplers.BaseSampler:
        # A search that goes on must not draw the same settings again.
        seed = (self._seed + 7919 * len(self._study.get_trials(deepcopy=False))) % 2**32
        name, options = self._settings.sampler, self._settings.sampler_options
        kind: Any
        if is_plug(name):
            kind = load_plug(name, "search.sampler")
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
                f"search.sampler = {name!r}: is no sampler of Optuna's (optuna.samplers.BaseSampler)"
            )
        return sampler


def _open(url: str, shown: str) -> optuna.storages.RDBStorage:
    sqlite = url.startswith("sqlite")
    try:
        storage = optuna.storages.RDBStorage(
            url, engine_kwargs={"connect_args": {"timeout": _SQLITE_SECONDS}} if sqlite else {}
        )
        if sqlite:
            # A write costs a tenth, and who reads, a dashboard for instance, blocks nobody. What a process has
            # written survives its end; after a power cut the last reports may be missing, but the file is whole.
            listen(
                storage.engine,
                "connect",
                lambda connection, _: connection.execute("PRAGMA synchronous = NORMAL"),
            )
            storage.engine.dispose()  # connections that were opened before
            with storage.engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        return storage
    except ImportError as error:
        raise ConfigurationError(
            f"search.storage = {shown!r}: {str(error).splitlines()[0]}; for PostgreSQL: pip install 'genkidama[postgresql]' and postgresql+psycopg://…"
        ) from None
    except (ValueError, ArgumentError) as error:
        raise ConfigurationError(f"search.storage = {shown!r}: {_problem(error)}") from None
    except (SQLAlchemyError, optuna.exceptions.OptunaError) as error:
        raise _unreachable(shown, error) from None


def _unreachable(shown: str, error: Exception) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"search.storage = {shown!r}: the study cannot be opened: {_problem(error)}"
    )


def _problem(error: BaseException) -> str:
    """The first line of an error, or of what Optuna has made it of."""
    error = error.__cause__ or error
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
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
        warnings.simplefilter(
            "ignore"
        )  # a range that is no multiple of its step is cut, as documented
        return optuna.distributions.FloatDistribution(
            float(dimension.low), float(dimension.high), dimension.log, dimension.step
        )


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *now]:
            if before.get(key) != now.get(key):
                return f"had {key} = {before.get(key)!r}, and now has {now.get(key)!r}"
    return f"was {before!r}, and now is {now!r}"
