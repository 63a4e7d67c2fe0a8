"""Repositories of the Hugging Face Hub: a run goes there, and weights come from there.

Laws of this file:
- A repository holds a run directory with one checkpoint, so whatever reads runs reads it.
- Only safetensors, TOML, JSON, the card and a film are sent, and only the first three are fetched.
- No name, address, path or password of the user's machines is sent (`Experiment.published`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from genkidama._version import __version__, pip_install
from genkidama.config.allowlist import allowing, modules
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.runs.checkpoint import save
from genkidama.runs.run import EXPERIMENT, Run, weights_of
from genkidama.runs.sharded_checkpoint import CHECKPOINTS
from genkidama.server.trial import Snapshot

_WEIGHTS = f"{CHECKPOINTS}/best.safetensors"
_EVALUATION = "evaluation.json"
_FILM = "replay.mp4"  # the Hub's pages show a film of this name

_NAME = re.compile(r"[\w][\w.-]*/[\w.-]+")


def share(
    run: Run,
    repository: str,
    *,
    private: bool = False,
    film: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> str:
    """Puts a run's best weights into a repository of the Hub.

    Args:
        run: the run, or a search, whose best trial is shared.
        repository: `"NAME/REPO"`; it is made if needed.
        private: whether a new one is seen by its owner alone.
        film: whether an episode is filmed.
        say: is called with a line about what had to be left out.

    Returns:
        The repository's address.

    Raises:
        ConfigurationError: no such weights, a wrong name, or the Hub refuses the token.
        EnvironmentFailure: huggingface_hub is not installed, or the Hub cannot be reached.
    """
    with _hub(repository) as hub, TemporaryDirectory() as name:
        folder = Path(name)
        _write(run, repository, folder, film, say)
        api = hub.HfApi(library_name="genkidama", library_version=__version__)
        made = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            commit_message=f"Genkidama {__version__}",
            delete_patterns=[_FILM, _EVALUATION],  # an older run's
        )
    return str(made)


def fetch(name: str) -> Path | None:
    """The run in a repository, downloaded into the Hub's cache; None if this is no NAME/REPO.

    Raises:
        ConfigurationError: there is no such repository, or none that `share` has made.
        EnvironmentFailure: as `share`.
    """
    if not _NAME.fullmatch(name):
        return None
    with _hub(name) as hub:
        folder = Path(
            hub.snapshot_download(name, allow_patterns=[EXPERIMENT, _WEIGHTS, _EVALUATION])
        )
    if not (folder / EXPERIMENT).is_file() or not (folder / _WEIGHTS).is_file():
        raise ConfigurationError(
            f"{name}: this repository has no {EXPERIMENT} and {_WEIGHTS}; "
            "name one that `genkidama share` has made"
        )
    return folder


def _write(run: Run, repository: str, folder: Path, film: bool, say: Callable[[str], None]) -> None:
    weights = weights_of(run)
    checkpoint, own = weights.checkpoint, weights.run or run
    experiment = own.experiment.published()
    (folder / EXPERIMENT).write_text(experiment.to_toml(), encoding="utf-8")
    snapshot = msgspec.structs.replace(
        checkpoint.snapshot,
        children={},
        sessions={},
        excluded=[],
        experiment=experiment.to_dict(),
    )
    (folder / _WEIGHTS).parent.mkdir()
    save(folder / _WEIGHTS, checkpoint.signature, checkpoint.vector, snapshot)
    evaluation = own.evaluation
    if evaluation is not None and evaluation.get("version") != snapshot.version:
        evaluation = None  # of other weights
    if evaluation is not None and evaluation.get("starts"):
        evaluation["starts"] = Path(evaluation["starts"]).name
    if evaluation is None:
        again = f"genkidama evaluate {shlex.quote(str(run.path))}{allowing(run.allow)}"
        say(f"without figures: these weights were not evaluated: {again}")
    else:
        text = msgspec.json.encode({**evaluation, "checkpoint": _WEIGHTS})
        (folder / _EVALUATION).write_bytes(text)
    if film:
        try:
            own.video(folder / _FILM)
        except GenkidamaError as error:
            say(f"without a film: {error}")
    shown = _FILM if (folder / _FILM).is_file() else ""
    card = model_card(repository, experiment, snapshot, evaluation, shown)
    (folder / "README.md").write_text(card, encoding="utf-8")


@contextmanager
def _hub(name: str) -> Iterator[Any]:
    """The library, with its errors in one line each."""
    try:
        import huggingface_hub as hub
        from huggingface_hub import errors, utils
    except ImportError:
        raise EnvironmentFailure(
            f"{name}: the Hub needs huggingface_hub: {pip_install('hub')}"
        ) from None
    utils.disable_progress_bars()
    utils.logging.set_verbosity_error()
    try:
        yield hub
    except errors.HFValidationError as error:
        raise ConfigurationError(f"{name}: {_first(error)}; expected NAME/REPO") from None
    except errors.RepositoryNotFoundError:
        raise ConfigurationError(
            f"{name}: no such run here, and the Hub shows no such repository; "
            "a private one needs `hf auth login`"
        ) from None
    except errors.LocalEntryNotFoundError as error:
        raise EnvironmentFailure(f"{name}: the Hub cannot be reached: {_first(error)}") from None
    except errors.HfHubHTTPError as error:
        if error.response.status_code in (401, 403):
            raise ConfigurationError(
                f"{name}: the Hub refuses: {_first(error)}; log in by `hf auth login`, or give a "
                "token that may write there: HF_TOKEN"
            ) from None
        raise EnvironmentFailure(f"{name}: the Hub fails: {_first(error)}") from None
    except (errors.OfflineModeIsEnabled, errors.HTTPError) as error:
        raise EnvironmentFailure(f"{name}: the Hub cannot be reached: {_first(error)}") from None
    except RuntimeError as error:  # of a large file
        raise EnvironmentFailure(
            f"{name}: {_first(error)} {_first(error.__cause__ or error)}"
        ) from None


def _first(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def model_card(
    repository: str,
    experiment: Experiment,
    snapshot: Snapshot,
    evaluation: dict[str, Any] | None,
    film: str = "",
) -> str:
    """The model card, `README.md`: the page of a repository, with metadata that the Hub reads. The
    snapshot is that of the weights; `film` is the name of a film beside them, if there is one."""
    from huggingface_hub import EvalResult, ModelCardData

    environment, algorithm = experiment.environment.id, experiment.algorithm.name
    results = None
    figures = "These weights were not evaluated."
    if evaluation is not None:
        mean, std = evaluation["mean"], evaluation["std"]
        played = evaluation["environment"]
        results = [
            EvalResult(
                task_type="reinforcement-learning",
                task_name="reinforcement-learning",
                dataset_type=played,
                dataset_name=played,
                metric_type="mean_reward",
                metric_name="mean_reward",
                metric_value=f"{mean:.2f} +/- {std:.2f}",
                verified=False,
            )
        ]
        how = "most probable" if evaluation["greedy"] else "sampled"
        begun = f", from {evaluation['starts']}" if evaluation.get("starts") else ""
        figures = (
            f"**{mean:.1f} ± {std:.1f}** in `{played}` (mean and standard deviation of the returns "
            f"of {evaluation['episodes']} episodes, {how} actions, seed {evaluation['seed']}{begun}"
        )
        limit = evaluation["threshold"]
        figures += ")." if limit is None else f"; the task counts as solved from {limit:g} on)."
    data = ModelCardData(
        library_name="genkidama",
        pipeline_tag="reinforcement-learning",
        tags=["reinforcement-learning", "deep-reinforcement-learning", "genkidama", environment],
        model_name=f"{algorithm} {environment}",
        eval_results=results,
    )
    own = modules(experiment.to_dict())
    allow = allowing(own)
    needs = f"\nIt needs these modules: {', '.join(own)}.\n" if own else ""
    shown = f'\n<video controls autoplay loop muted src="{film}"></video>\n' if film else ""
    return f"""\
---
{data.to_yaml()}
---

# {algorithm} on {environment}

{figures}
{shown}
Trained with Genkidama, which trains one policy on many small machines, in {snapshot.steps:,} steps,
{snapshot.episodes:,} episodes and {snapshot.seconds:,.0f} seconds.
{needs}
Play it, evaluate it, or train on:

```bash
{pip_install("hub")}
hf download {repository} --local-dir shared
genkidama evaluate shared{allow}
genkidama train --from {repository}{allow}
```

In Python:

```python
import genkidama

policy = genkidama.Run.open("shared").policy()
```

## Settings

```toml
{experiment.to_toml().strip()}
```
"""
