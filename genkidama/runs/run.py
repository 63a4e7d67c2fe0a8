"""A run as one's own scripts see it: its policy, its curve, its figures."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genkidama.config import plugin
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runs import directory as runs
from genkidama.runs.checkpoint import Checkpoint
from genkidama.runs.curves import columns

if TYPE_CHECKING:
    import pandas

    from genkidama.runs.policy import Policy

__all__ = ["Run"]


class Run(runs.Run):
    """A run directory, running or ended, with what can be made of it.

    Args:
        path: the directory.
        allow: modules that its settings may have imported, beside Genkidama's and Gymnasium's; a
            program that has trained it allows what it has trained with.
    """

    def load(
        self, *, best: bool = True, unreadable: Callable[[str], None] = lambda _: None
    ) -> Checkpoint:
        """As `genkidama.runs.directory.Run.load`; of a search, the best trial's.

        Raises:
            ConfigurationError: as there, or no trial of the search has a score yet.
        """
        from genkidama.runs.selection import best_trial_of

        return runs.Run.load(best_trial_of(self), best=best, unreadable=unreadable)

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
        from genkidama.runs.selection import weights_of

        return Policy(weights_of(self, best=best).checkpoint, seed, (*self.allow, *allow))

    def video(self, path: str | Path, **options: Any) -> Path:
        """Films the policy while it plays, and returns the file.

        Args:
            path: the film, MP4 or GIF.
            options: those of `genkidama.play`.

        Raises:
            GenkidamaError: as `genkidama.play`.
        """
        play = _method("video")
        play(self, video=path, **options)
        return Path(path)

    def curve(self) -> pandas.DataFrame:
        """The learning curve: a row an exchange, with the columns of `genkidama.runs.curves`.

        Raises:
            EnvironmentFailure: pandas is not installed.
        """
        return _pandas().DataFrame(columns(self.history()))

    def frame(self) -> pandas.DataFrame:
        """The whole history: a row a line, a column a field (docs/history.md).

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
        if self.experiment.search is None:
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
        """What a notebook shows: where it is, how far it came, how good it is."""
        found = columns(self.history())
        evaluation = self.evaluation
        rows: dict[str, Any] = {"directory": self.path}
        if found["steps"]:
            rows["environment steps"] = f"{found['steps'][-1]:,}"
            rows["episodes"] = f"{found['episodes'][-1]:,}"
            rows["children"] = len(set(found["child"]))
            last = found["mean_return"][-1]
            rows["mean training return"] = "–" if last is None else f"{last:.1f}"
        if self.trials:
            rows["trials"] = len(self.trials)
            rows["best trial"] = self._best_trial()
        if evaluation is not None:
            rows["evaluated"] = (
                f"{evaluation['mean']:.1f} ± {evaluation['std']:.1f} "
                f"over {evaluation['episodes']} episodes"
            )
        cells = "".join(
            f"<tr><th style='text-align:left'>{name}</th><td>{html.escape(str(value))}</td></tr>"
            for name, value in rows.items()
        )
        return f"<table>{cells}</table>"

    def _best_trial(self) -> str:
        from genkidama.runs.selection import best_trial_of

        try:
            return best_trial_of(self).path.name
        except ConfigurationError:
            return "–"


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
            "this needs pandas: pip install 'genkidama[figures]'; "
            "without it, run.history() gives the lines as dictionaries"
        ) from None
    return pandas
