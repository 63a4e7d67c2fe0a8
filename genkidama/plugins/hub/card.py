"""Model card of a shared run: the page of its repository, with metadata that the Hub reads."""

from __future__ import annotations

from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from genkidama._version import pip_install
from genkidama.config.allowlist import allowing, modules
from genkidama.config.experiment import Experiment
from genkidama.server.trial import Snapshot


def model_card(
    repository: str,
    experiment: Experiment,
    snapshot: Snapshot,
    evaluation: dict[str, Any] | None,
    film: str = "",
) -> str:
    """The text of `README.md`, with YAML metadata in front.

    Args:
        repository: `"NAME/REPO"`.
        experiment: the settings, as they are shared.
        snapshot: the counters at which the weights were saved.
        evaluation: of these weights, as `evaluation.json` has it; None if there was none.
        film: the name of a film in the repository; empty without one.
    """
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
        figures = (
            f"**{mean:.1f} ± {std:.1f}** in `{played}` (mean and standard deviation of the returns "
            f"of {evaluation['episodes']} episodes, {how} actions, seed {evaluation['seed']}"
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
