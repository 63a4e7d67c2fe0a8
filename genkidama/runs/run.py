"""A run directory: its files, and their readers. No other module names the files.

experiment.toml    the settings as they were used
checkpoints/       version-NNNNNNNNNN.safetensors (the last few) and best.safetensors
parts/2-of-3/      the additional files of the second of three shards of a parent
trials/NNNN/       of a search: each trial, as a separate run
study.db           of a search: the Optuna study, unless it is kept elsewhere
history.jsonl      the events, one JSON object a line
evaluation.json    the last evaluation
identity           what tells the run from others of its name at W&B, MLflow and trackio
logs/, children/   logs of the processes, and state of the children (runs on one machine)
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from genkidama._version import pip_install
from genkidama.config import plugin
from genkidama.config.allowlist import allowing
from genkidama.config.examples import ZOO, trained
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.runs import sharded_checkpoint
from genkidama.runs.checkpoint import Checkpoint, CheckpointFolder
from genkidama.runs.history import History, read_lines
from genkidama.runs.sharded_checkpoint import CHECKPOINTS, join
from genkidama.runs.status import RunStatus, line
from genkidama.runtime.files import disk_errors, write_atomically
from genkidama.server.events import (
    Evaluated,
    Resumed,
    Started,
    as_lines,
    decode_line,
    from_line,
)
from genkidama.server.trial import Snapshot

if TYPE_CHECKING:
    import pandas

    from genkidama.runs.policy import Policy

EXPERIMENT = "experiment.toml"
TRIALS = "trials"
STUDY = "study.db"
HISTORY = "history.jsonl"
IDENTITY = "identity"

#: While a run without tokens goes on, on three lines: the address for `genkidama top` with its
#: owner's token, the link to its page, which opens once, and the link's salt. Only the run's user
#: may read it.
OWNER = "owner"
LOGS = "logs"
CHILDREN = "children"

#: The experiment that a parent reads. Once checked against the run, it becomes the run's own.
SETTINGS = f"{LOGS}/{EXPERIMENT}"

_EVALUATION = "evaluation.json"

#: So many runs of one name may begin in a second.
_MOST_IN_A_SECOND = 100


def trial_folder(number: int) -> str:
    """The folder of a trial in a search's directory: `"trials/0007"`."""
    return f"{TRIALS}/{number:04d}"


def new_directory(name: str, under: Path = Path("runs")) -> Path:
    """Makes `under/NAME-DATE-TIME`, with a number behind it if it is there already."""
    stamp = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for suffix in ("", *(f"-{number}" for number in range(2, _MOST_IN_A_SECOND + 1))):
        path = under / f"{stamp}{suffix}"
        with suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise EnvironmentFailure(
        f"{under / stamp}: 100 runs began in this second; choose a directory with --out"
    )


@dataclass(frozen=True)
class Run:
    """A run directory, running or ended: its weights, its policy, its curve, its figures.

    Args:
        path: the directory.
        allow: modules that its settings may have imported, beside Genkidama's and Gymnasium's; a
            program that has trained it allows what it has trained with.
    """

    path: Path
    allow: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def open(cls, path: str | Path, allow: Iterable[str] = ()) -> Self:
        """An existing run.

        Args:
            path: the directory.
            allow: as `Run`.

        Raises:
            ConfigurationError: there is no run in that directory.
        """
        run = cls(Path(path), tuple(allow))
        if not (run.path / EXPERIMENT).is_file():
            raise ConfigurationError(
                f"{path}: holds no run (no {EXPERIMENT}); give a run's directory, as runs/NAME"
            )
        return run

    @property
    def experiment(self) -> Experiment:
        """The settings as they were used."""
        return Experiment.load(self.path / EXPERIMENT)

    @property
    def checkpoints(self) -> list[Path]:
        """The versions kept, oldest first, without the best."""
        return sorted((self.path / CHECKPOINTS).glob("version-*.safetensors"))

    @property
    def trials(self) -> list[Self]:
        """The trials of a search that have weights, by number."""
        paths = sorted((self.path / TRIALS).glob("[0-9]*"))
        return [type(self)(path, self.allow) for path in paths]

    @property
    def best(self) -> Path | None:
        """The best checkpoint, as the end of `train` has chosen it, or so far by mean training
        return; None before a whole window."""
        path = self.path / CHECKPOINTS / "best.safetensors"
        return path if path.is_file() else None

    @property
    def final(self) -> Path:
        """The file of the newest good checkpoint; errors as `load`."""
        path = self._file().path
        assert path is not None
        return path

    @property
    def snapshot(self) -> Snapshot:
        """The counters of the same, whether all its parts are there or not; errors as `load`."""
        return self._file().snapshot

    @property
    def parts(self) -> int:
        """The number of its parent's shards in the newest good checkpoint; 1 without one."""
        found = CheckpointFolder(self.path / CHECKPOINTS).latest()
        return 1 if found is None else found.part.count

    def load(
        self, *, best: bool = True, unreadable: Callable[[str], None] = lambda _: None
    ) -> Checkpoint:
        """The weights and counters of a good checkpoint; its `path` says of which.

        Of a search, those of its best trial.

        Args:
            best: takes the best by mean training return, if one is known; otherwise the newest,
                from which a parent would go on.
            unreadable: called with one line for each file that had to be passed over.

        Raises:
            ConfigurationError: there is none yet, or none is good, or a part's file is missing, or
                no trial of the search has a score.
        """
        return join(best_trial_of(self)._file(best, unreadable))

    def _file(
        self, best: bool = False, unreadable: Callable[[str], None] = lambda _: None
    ) -> Checkpoint:
        """The checkpoint that `load` reads: of a sharded parent, that of the first shard."""
        folder = CheckpointFolder(self.path / CHECKPOINTS)
        problems: list[str] = []
        found = folder.best(problems.append) if best else folder.latest(problems.append)
        for problem in problems:
            unreadable(problem)
        if found is None and problems:
            raise ConfigurationError(f"{self.path}: holds no good checkpoint: {problems[0]}")
        if found is None:
            raise ConfigurationError(
                f"{self.path}: holds no checkpoint yet; "
                "train longer, or lower parent.checkpoint_seconds"
            )
        return found

    def history(self) -> Iterator[dict[str, Any]]:
        """The events, oldest first: the whole lines of `history.jsonl` as dictionaries.

        `docs/reference/history.md` says what they mean.

        Raises:
            ConfigurationError: a line is damaged.
        """
        path = self.path / HISTORY
        for number, text in enumerate(read_lines(path), 1):
            try:
                yield decode_line(text)
            except msgspec.DecodeError as error:
                raise ConfigurationError(
                    f"{path}: line {number} is damaged: {error}; "
                    "take that line out to go on without it"
                ) from None

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """The last evaluation as it was written, None if there was none.

        Raises:
            ConfigurationError: the file is broken.
        """
        path = self.path / _EVALUATION
        try:
            return decode_line(path.read_bytes())
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            again = f"genkidama evaluate {shlex.quote(str(self.path))}{allowing(self.allow)}"
            raise ConfigurationError(
                f"{path}: is broken: {error}; evaluate again: {again}"
            ) from None

    def record_evaluation(
        self, evaluation: dict[str, Any], returns: Sequence[float], now: float
    ) -> None:
        """Writes `evaluation.json`, which has the returns, and a line of history, which has not."""
        whole = {**evaluation, "returns": [round(value, 3) for value in returns]}
        lines = (
            b"  " + msgspec.json.encode(key) + b": " + msgspec.json.encode(value)
            for key, value in whole.items()
        )
        text = b"{\n" + b",\n".join(lines) + b"\n}\n"
        write_atomically(self.path / _EVALUATION, text, concurrent=True)
        event = Evaluated(time=now, mean_return=evaluation["mean"], **evaluation)
        path = self.path / HISTORY
        try:
            history = History(path)
        except EnvironmentFailure:  # a parent writes it, which has cut off what was torn
            with disk_errors(path), path.open("ab") as file:
                file.write(as_lines([event]))
            return
        with closing(history):
            history.add([event])
            history.flush()

    def policy(self, *, best: bool = True, seed: int = 0, allow: Iterable[str] = ()) -> Policy:
        """The trained policy, ready to act; it says of which weights it is.

        Args:
            best: takes the best checkpoint by mean training return, as `load` and `evaluate` do;
                the newest if there is none yet, or if this is false. Of a search, it is the best
                trial's.
            seed: of the sampled actions.
            allow: more modules that its settings may have imported (docs/security.md).

        Raises:
            ConfigurationError: there is no checkpoint yet, its environment cannot be made here, or
                it names a module that is not allowed.
        """
        from genkidama.runs.policy import Policy

        return Policy(weights_of(self, best=best).checkpoint, seed, (*self.allow, *allow))

    def video(self, path: str | Path, **options: Any) -> Path:
        """Films the policy while it plays, and returns the file, MP4 or GIF.

        Options and errors are those of `genkidama.play`.
        """
        _method("video")(self, video=path, **options)
        return Path(path)

    def curve(self) -> pandas.DataFrame:
        """The learning curve: a row an exchange, with the columns of `genkidama.runs.curves`.

        Raises:
            EnvironmentFailure: pandas is not installed.
        """
        from genkidama.runs.curves import columns

        return _pandas().DataFrame(columns(self.history()))

    def frame(self) -> pandas.DataFrame:
        """The whole history: a row a line, a column a field (docs/reference/history.md).

        Raises:
            EnvironmentFailure: pandas is not installed.
        """
        return _pandas().DataFrame(list(self.history()))

    def plot(self, folder: str | Path | None = None, over: str = "steps") -> list[Path]:
        """Draws the run or search, as `genkidama plot` does, and returns the files.

        Args:
            folder: where to; `figures/` in the run's directory if absent.
            over: of a run, `"steps"`, `"seconds"`, `"episodes"` or `"updates"`.

        Raises:
            ConfigurationError: Matplotlib or Optuna is not installed, or no episode has ended yet.
            EnvironmentFailure: the files cannot be written.
        """
        folder = self.path / "figures" if folder is None else Path(folder)
        if not self.experiment.searches:
            paths: list[Path] = _method("plot")([self], folder, over)
            return paths
        self.report(folder)
        return sorted(folder.iterdir())

    def report(self, figures: str | Path | None = None) -> str:
        """The report on a search, as `genkidama report` prints it.

        Args:
            figures: the folder that figures are written to; none are drawn if absent.

        Raises:
            ConfigurationError: it is no search, or a package is missing.
            EnvironmentFailure: the study cannot be read, or the figures cannot be written.
        """
        text: str = _method("report")(self, figures)
        return text

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A method of an installed plug-in."""
            if not name.startswith("_") and (method := plugin.find("run_methods", name)):
                return partial(method, self)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _repr_html_(self) -> str:
        """A table for a notebook: directory, status, evaluation."""
        import html  # its table of entities takes 0.4 MB

        status = self.status()
        document = msgspec.to_builtins(status.snapshot(status.time))
        rows: dict[str, Any] = {"directory": self.path, "status": line(document)}
        if (evaluation := self.evaluation) is not None:
            rows["evaluated"] = (
                f"{evaluation['mean']:.1f} ± {evaluation['std']:.1f} "
                f"over {evaluation['episodes']} episodes"
            )
        cell = "<tr><th style='text-align:left'>{}</th><td>{}</td></tr>"
        cells = (cell.format(name, html.escape(str(value))) for name, value in rows.items())
        return f"<table>{''.join(cells)}</table>"

    def status(self) -> RunStatus:
        """The status that its history gives; lines that another program wrote are left out."""
        status = RecordedStatus(self, self.experiment)
        for fields in self.history():
            with suppress(msgspec.ValidationError):
                if (event := from_line(fields)) is not None:
                    status.take((event,))
        return status


class RecordedStatus(RunStatus):
    """The status that a run's history gives. A parent that goes on with the run may have other
    settings, and the run's directory has those of the last."""

    def __init__(self, run: Run, experiment: Experiment) -> None:
        super().__init__(experiment)
        self._run = run

    def _begin(self, event: Started | Resumed) -> None:
        super()._begin(event)
        with suppress(GenkidamaError):
            self.experiment = self._run.experiment
            if self.search is not None:
                self.search.begin(self.experiment)


@dataclass(frozen=True)
class SelectedWeights:
    """The weights that are played."""

    #: The run that they are of, of a search its best trial; None of a file.
    run: Run | None
    checkpoint: Checkpoint

    @property
    def path(self) -> Path:
        """The checkpoint's file."""
        assert self.checkpoint.path is not None
        return self.checkpoint.path

    def __str__(self) -> str:
        version = self.checkpoint.snapshot.version
        best = self.path.stem == "best"
        return f"best weights, version {version}" if best else f"weights of version {version}"


def weights_of(target: Run | str | Path, *, best: bool = True) -> SelectedWeights:
    """The weights of a run, its directory, a search's, a checkpoint file, or `"zoo:NAME"`.

    Of a run it takes the best by mean training return, if one is known and wanted; otherwise the
    newest. Of a search, the run is its best trial. Of the zoo nothing is written, so it is no run.
    """
    if str(target).startswith(ZOO):
        return SelectedWeights(None, Run.open(trained(str(target))).load())
    if not isinstance(target, Run) and not Path(target).is_dir():
        return SelectedWeights(None, sharded_checkpoint.load(Path(target)))
    run = best_trial_of(target if isinstance(target, Run) else Run.open(target))
    return SelectedWeights(run, run.load(best=best, unreadable=warn_passed_over))


def best_trial_of(run: Run) -> Run:
    """The run itself or, of a search, its best trial that has a score and weights."""
    if not (run.path / EXPERIMENT).is_file() or not run.experiment.searches:
        return run
    search = run.status().search
    assert search is not None
    trials = {int(trial.path.name): trial for trial in run.trials if trial.checkpoints}
    best = search.best(set(trials))
    if best is None:
        raise ConfigurationError(
            f"{run.path}: no trial of this search has a score yet; go on later"
        )
    return trials[best]


def warn_passed_over(problem: str) -> None:
    """Prints a warning about a file that had to be passed over."""
    print(f"warning: passed over {problem}", file=sys.stderr)


def _method(name: str) -> Any:
    """A method that a plug-in brings."""
    method = plugin.find("run_methods", name)
    if method is None:
        raise ConfigurationError(f"{name}: the plug-in that brings it is missing here")
    return method


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise EnvironmentFailure(
            f"this needs pandas: {pip_install('figures')}; "
            "without it, run.history() gives the lines as dictionaries"
        ) from None
    return pandas
