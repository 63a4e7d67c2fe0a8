"""The Optuna study of a search: its database, written during the search, read by a report.

Laws of this file:
- `records.py` names what a study holds.
- The database is written behind the replies: no node waits for it. What is not written yet is
  written later, in order; writing the same thing twice changes nothing.
- One thread talks to the database; it may be slow or away, and the search continues.
- Errors name the database without its password. Reading makes no file.
- A metric that is no finite number counts as NaN. A trial whose last report failed has failed,
  whatever the study calls it.
- Optuna's importances see completed trials only. A setting that decides which trials are stopped
  looks harmless there, since all trials that are left agree on it. So its fANOVA reads a copy of
  the study in which each trial that has ended has completed with its last score, and a failed one
  with the worst that was reported.
"""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from genkidama._version import __version__, pip_install
from genkidama.config.decoding import convert
from genkidama.config.experiment import Experiment
from genkidama.config.formatting import plural
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.plugins.hypertrick.records import (
    OPTUNA_STATES,
    PhaseRecord,
    State,
    StudySnapshot,
    TrialRecord,
)
from genkidama.plugins.hypertrick.rule import Mode, Verdict
from genkidama.plugins.hypertrick.search import SearchTrial
from genkidama.plugins.hypertrick.settings import SearchSettings
from genkidama.plugins.hypertrick.space import Dimension, parse_space
from genkidama.runs.run import STUDY
from genkidama.runtime.import_strings import is_import_string, load_object

try:
    import optuna
    from sqlalchemy.engine import URL, make_url
    from sqlalchemy.event import listen
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError
except ImportError as error:
    raise ConfigurationError(
        f"a search needs Optuna ({error}); install it: {pip_install('search')}"
    ) from None

#: Seconds that SQLite waits for another writer, a dashboard for instance.
_SQLITE_SECONDS = 60.0

_POSTGRESQL = f"for PostgreSQL: {pip_install('postgresql')}"


def storage_url(storage: str, out: Path) -> str:
    """The study's storage: as the experiment says, or a SQLite file in the run's directory."""
    return storage or URL.create("sqlite", database=f"{out.absolute() / STUDY}").render_as_string()


def _without_password(url: str) -> str:
    """A storage's URL to show."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        return url


def _open_database(url: str) -> optuna.storages.RDBStorage:
    """The database at `url`, to write to it; a SQLite file is made if it does not exist."""
    shown, sqlite = _without_password(url), url.startswith("sqlite")
    try:
        storage = optuna.storages.RDBStorage(
            url, engine_kwargs={"connect_args": {"timeout": _SQLITE_SECONDS}} if sqlite else {}
        )
        if sqlite:
            _speed_up(storage)
        return storage
    except ImportError as error:
        raise ConfigurationError(
            f"search.storage = {shown!r}: {_first_line(error)}; "
            f"{_POSTGRESQL} and postgresql+psycopg://…"
        ) from None
    except (ValueError, ArgumentError) as error:
        raise ConfigurationError(f"search.storage = {shown!r}: {_first_line(error)}") from None
    except (SQLAlchemyError, optuna.exceptions.OptunaError) as error:
        raise _unreachable(url, error) from None


def _speed_up(storage: optuna.storages.RDBStorage) -> None:
    """Makes a write to SQLite cost a tenth. Readers, as a dashboard, block no writer then.

    What a process has written survives its end. After a power cut the last reports may be missing,
    but the file is whole.
    """
    listen(
        storage.engine,
        "connect",
        lambda connection, _: connection.execute("PRAGMA synchronous = NORMAL"),
    )
    _reopen(storage)


def _reopen(storage: optuna.storages.RDBStorage) -> None:
    storage.engine.dispose()  # connections that were opened before
    with storage.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")


def open_study(url: str, name: str, only: bool = False) -> optuna.Study:
    """The study `name` in the storage `url`, as `sqlite:///runs/search/study.db`, to read it.

    With `only` it is the only one there that has begun, if there is one: its run's directory may
    have been renamed.
    """
    shown = _without_password(url)
    try:
        file = make_url(url).database if url.startswith("sqlite") else None
        if file and not Path(file).exists():  # opening it would make an empty one
            raise ConfigurationError(
                f"study {name!r}: there is no file {file}; has the search begun?"
            )
        storage = optuna.storages.get_storage(url)
        begun = _begun(storage) if only else []
        return optuna.load_study(study_name=begun[0] if len(begun) == 1 else name, storage=storage)
    except KeyError:
        names = ", ".join(optuna.get_all_study_names(storage)) or "none"
        raise ConfigurationError(f"study {name!r} is not in {shown}; it holds: {names}") from None
    except ImportError as error:
        raise ConfigurationError(
            f"study {name!r} in {shown}: {_first_line(error)}; {_POSTGRESQL}"
        ) from None
    except (SQLAlchemyError, optuna.exceptions.OptunaError) as error:
        raise EnvironmentFailure(
            f"study {name!r} in {shown}: cannot be read: {_first_line(error)}"
        ) from None


def _begun(storage: optuna.storages.BaseStorage) -> list[str]:
    """The names of its studies with trials."""
    summaries = optuna.get_all_study_summaries(storage)
    return [summary.study_name for summary in summaries if summary.n_trials]


def _unreachable(url: str, error: Exception) -> EnvironmentFailure:
    """The error to raise if the database cannot be opened."""
    return EnvironmentFailure(
        f"search.storage = {_without_password(url)!r}: "
        f"the study cannot be opened: {_first_line(error)}"
    )


def _first_line(error: BaseException) -> str:
    """The first line of an error, or of the one that it was made of."""
    error = error.__cause__ or error
    return next(iter(str(error).splitlines()), "") or type(error).__name__


# The study of a search under way.


class Study:
    """The study of one search. All methods may block; `sample` and `write` have a thread for that.

    Its name is that of the run's directory, `out`, when it began. A study that exists although the
    run does not (`resumes`) is another one's, and is refused.
    """

    def __init__(self, experiment: Experiment, out: Path, resumes: bool) -> None:
        assert experiment.search is not None
        self.url = storage_url(experiment.search.storage, out)
        self.name = out.absolute().name
        self._settings = experiment.search
        self._seed = experiment.seed
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
        self.shown = _without_password(self.url)
        self._database = _open_database(self.url)
        file = Path(self._database.engine.url.database or "")
        #: The file of an SQLite study.
        self._file = file if self.url.startswith("sqlite") and file.is_file() else None
        self._storage = optuna.storages.get_storage(self._database)
        try:
            begun = _begun(self._storage)
            if not experiment.search.storage and len(begun) == 1:
                (self.name,) = begun
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
            # A sampler that has proposed all there is stops a loop of Optuna's, which is not there.
            self._study.stop = lambda: None  # type: ignore[method-assign]
        except BaseException as error:
            self.close()
            if isinstance(error, SQLAlchemyError | optuna.exceptions.OptunaError):
                raise _unreachable(self.url, error) from None
            raise

    def trials(self) -> list[TrialRecord]:
        """All trials that were begun, by number."""
        running = (optuna.trial.TrialState.RUNNING,)
        for trial in self._study.get_trials(deepcopy=False, states=running):
            if trial.params.keys() != self._distributions.keys():
                # A parent was killed while it sampled.
                self._suggest(optuna.trial.Trial(self._study, trial._trial_id))
        # A trial that is WAITING has only been asked for; `sample` will give it.
        records = _read_trials(self._study, self._space)
        return [record for record in records if record.state != "waiting"]

    async def sample(self) -> tuple[int, dict[str, Any]]:
        """A new trial: its number and its settings, from the sampler."""
        number, params = await self._in_thread(self._sample)
        return number, params

    def write(self, trials: list[tuple[SearchTrial, str]]) -> Awaitable[None]:
        """Brings the study up to date with these trials; with each comes its checkpoint's path.

        They are written as they are at the call. That may take a minute if another program has
        locked the database. After an EnvironmentFailure, try again with the same trials.
        """
        copies = [
            (trial.number or 0, list(trial.phases), trial.state, trial.stop, checkpoint)
            for trial, checkpoint in trials
        ]
        return self._in_thread(self._write, copies)

    def close(self) -> None:
        """Waits for the write under way."""
        self._thread.shutdown()
        self._storage.remove_session()
        self._database.engine.dispose()

    async def _in_thread(self, work: Any, *arguments: Any) -> Any:
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._do, work, *arguments)
        except Exception as error:  # of a sampler that is not Optuna's
            raise EnvironmentFailure(
                f"the study {self.name!r} in {self.shown!r}: {_first_line(error)}"
            ) from None

    def _do(self, work: Any, *arguments: Any) -> Any:
        """Works on the file; if it was deleted, it is written anew, of what is still open."""
        if self._file is not None and not self._file.exists():
            with self._database.engine.connect() as connection:
                connection.exec_driver_sql("VACUUM INTO ?", (str(self._file),))
            _reopen(self._database)
        return work(*arguments)

    def _sample(self) -> tuple[int, dict[str, Any]]:
        if self._asked is None:
            self._asked = self._study.ask()
        try:
            number, params = self._asked.number, self._suggest(self._asked)
        except ValueError:  # it was enqueued with a value that is none of the choices
            self._study.tell(self._asked, state=optuna.trial.TrialState.FAIL)
            self._asked = None
            raise
        self._asked = None
        return number, params

    def _suggest(self, trial: optuna.trial.Trial) -> dict[str, Any]:
        """The trial's settings; those that are not drawn yet come from the sampler."""
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
            if state in OPTUNA_STATES:
                self._storage.set_trial_user_attr(identity, "reason", reason)
                metric = phases[-1].metric if phases else None
                self._study.tell(
                    number,
                    metric if state == "completed" else None,
                    state=optuna.trial.TrialState[OPTUNA_STATES[state]],
                    skip_if_finished=True,
                )
                del self._written[number]

    def _claim(self, experiment: Experiment) -> None:
        """Writes the settings of the search, or checks that they are those of before."""
        settings = experiment.to_dict()
        settings["search"].pop("storage", None)  # it may hold a password
        facts = {"version": __version__, "experiment": settings}
        before = self._study.user_attrs.get("genkidama")
        if before is None and self._study.get_trials(deepcopy=False):
            raise ConfigurationError(
                f"search.storage = {self.shown!r}: the study {self.name!r} "
                "was not made by Genkidama; choose another name with --out"
            )
        if before is not None:
            theirs, ours = _settings(before, f"study {self.name!r}"), self._settings
            keys = ["space", "phases", "phase_steps", "phase_episodes", "phase_seconds"]
            if theirs.waits or ours.waits:  # a trial may be paused at a rung that is none any more
                keys += ["method", "reduction_factor", "least_phases", "restart"]
            for key in keys:
                if (old := _plain(theirs, key)) != (new := _plain(ours, key)):
                    raise ConfigurationError(
                        f"the study {self.name!r} in {self.shown!r} belongs to another search: "
                        f"its {key} {_difference(old, new)}; choose another directory with --out"
                    )
        self._study.set_user_attr("genkidama", facts)

    def _sampler(self) -> optuna.samplers.BaseSampler:
        # A resumed search must not draw the same settings again.
        seed = (self._seed + 7919 * len(self._study.get_trials(deepcopy=False))) % 2**32
        name, options = self._settings.sampler, self._settings.sampler_options
        kind: Any
        if is_import_string(name):
            kind = load_object(name, "search.sampler")
        else:
            tpe = name == "tpe"
            kind = optuna.samplers.TPESampler if tpe else optuna.samplers.RandomSampler
            options = ({"multivariate": True} if tpe else {}) | {"seed": seed} | options
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
        if "seed" in self._settings.sampler_options and self._study.get_trials(deepcopy=False):
            sampler.reseed_rng()
        return sampler


def _distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
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


def _settings(attributes: Any, source: str) -> SearchSettings:
    """The `[search]` of a study's attribute."""
    search = attributes.get("experiment", {}).get("search", {})
    return convert(search, SearchSettings, f"{source}, attribute 'genkidama'")


def _plain(settings: SearchSettings, key: str) -> Any:
    if key == "reduction_factor":
        return settings.eta
    return msgspec.to_builtins(
        parse_space(settings.space) if key == "space" else getattr(settings, key)
    )


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *now]:
            if before.get(key) != now.get(key):
                return f"had {key} = {before.get(key)!r}, and now has {now.get(key)!r}"
    return f"was {before!r}, and now is {now!r}"


# Reading.


def read(study: optuna.Study) -> StudySnapshot:
    """A snapshot of a study; its search may still be running."""
    source = f"study {study.study_name!r}"
    attributes = study.user_attrs.get("genkidama")
    if attributes is None:
        raise ConfigurationError(
            f"{source} has no attribute 'genkidama': "
            "a study that `genkidama search` has made is needed"
        )
    if [direction.name for direction in study.directions] != ["MAXIMIZE"]:
        directions = [direction.name.lower() for direction in study.directions]
        raise ConfigurationError(f"{source}: directions = {directions}: ['maximize'] is needed")
    settings = _settings(attributes, source)
    space = parse_space(settings.space, f"{source}, space")
    return StudySnapshot(study.study_name, settings, space, tuple(_read_trials(study, space)))


def _read_trials(study: optuna.Study, space: dict[str, Dimension]) -> list[TrialRecord]:
    """The trials of a study, by number."""
    return [
        _trial(trial, space, f"study {study.study_name!r}, trial {trial.number}")
        for trial in sorted(study.get_trials(deepcopy=False), key=lambda trial: trial.number)
    ]


def _trial(
    trial: optuna.trial.FrozenTrial, space: dict[str, Dimension], source: str
) -> TrialRecord:
    about = trial.user_attrs
    phases: list[PhaseRecord] = _convert(
        about.get("phases", []), list[PhaseRecord], f"{source}, attribute 'phases'"
    )
    names = {theirs: ours for ours, theirs in OPTUNA_STATES.items()} | {"WAITING": "waiting"}
    state: State = names.get(trial.state.name, "running")
    if state == "stopped" and phases and phases[-1].mode is Mode.FAILURE:
        state = "failed"
    if state == "running" and phases and phases[-1].verdict is Verdict.PAUSE:
        state = "paused"
    params = {key: _value(space.get(key), label) for key, label in trial.params.items()}
    for record in phases:
        params = params if record.params is UNSET else record.params
    return TrialRecord(
        number=trial.number,
        state=state,
        params=params,
        phases=phases,
        checkpoint=str(about.get("checkpoint", "")),
    )


def _value(dimension: Dimension | None, label: Any) -> Any:
    """The setting's value for what the study calls it: lists are kept there as JSON text."""
    try:
        return label if dimension is None else dimension.value(label)
    except ValueError:  # not one of the choices: a trial of another program
        return label


def _convert(value: Any, kind: Any, source: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(
            f"{source}: {str(error).replace('`', '')}; this version of Genkidama cannot read it"
        ) from None


# Importances: shares of the variance of the score.

#: With fewer trials than this the shares mean little.
ENOUGH = 10

#: With fewer than this there are no importances.
_LEAST = 4

_TREES = 64


@dataclass(frozen=True)
class Importances:
    """Shares of the variance of the score."""

    #: By dotted setting, largest first. They add up to 1, or are all 0 if all scores are equal.
    shares: dict[str, float]
    #: The number of trials that they are computed from.
    trials: int
    #: The reason why the shares mean little; empty if there is none.
    caution: str = ""


def importances(snapshot: StudySnapshot) -> Importances | None:
    """The settings' importances; None if fewer than 4 trials have ended with anything to learn, or
    all with the same settings."""
    study = ended_study(snapshot)
    scores = [trial.value for trial in study.get_trials(deepcopy=False)]
    if len(scores) < _LEAST:
        return None
    if len(set(scores)) == 1:
        return Importances(dict.fromkeys(snapshot.space, 0.0), len(scores), "all scores are equal")
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            evaluator = FanovaImportanceEvaluator(n_trees=_TREES, seed=0)
            shares = get_param_importances(study, evaluator=evaluator)
    except ImportError:
        raise ConfigurationError(
            f"importances need scikit-learn: {pip_install('search')}"
        ) from None
    except RuntimeError:  # no tree has found two settings to tell apart
        return None
    count = plural(len(scores), "trial")
    few = f"only {count} ended, and at least {ENOUGH} are needed" if len(scores) < ENOUGH else ""
    return Importances({name: float(share) for name, share in shares.items()}, len(scores), few)


def ended_study(snapshot: StudySnapshot, failed: bool = True) -> optuna.Study:
    """A study in memory in which the trials that have ended completed with their last scores.

    With `failed` it counts failed trials, with the worst score of all reports; else it takes every
    trial that has a score.
    """
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    optuna.logging.set_verbosity(before)
    reported = [phase.score for trial in snapshot.trials for phase in trial.phases]
    worst = min((score for score in reported if not math.isnan(score)), default=None)
    distributions = {key: _distribution(dimension) for key, dimension in snapshot.space.items()}
    for trial in snapshot.ended if failed else snapshot.ranking:
        if worst is None or not distributions.keys() <= trial.params.keys():
            continue
        score = worst if math.isnan(trial.score) else trial.score
        params = {key: one.label(trial.params[key]) for key, one in snapshot.space.items()}
        with suppress(ValueError):  # a trial of another program, with values out of the space
            study.add_trial(
                optuna.trial.create_trial(value=score, params=params, distributions=distributions)
            )
    return study
