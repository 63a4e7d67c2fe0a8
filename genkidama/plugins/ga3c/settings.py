"""`[ga3c]`, and the checks of an experiment with this backend. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from genkidama.config.decoding import Count, Device, Meta, Natural, Positive, Section
from genkidama.errors import ConfigurationError

if TYPE_CHECKING:
    from genkidama.config.experiment import Experiment


class GA3CSettings(Section, frozen=True):
    """`[ga3c]`: the backend `"ga3c"`, in which many agents share one model. `algorithm.batch_size`
    is its t_max."""

    device: Device = "auto"
    """Where the model is: `"cpu"`, `"cuda"`, `"cuda:N"`; `"auto"` means a GPU if there is one."""
    agents: Natural | Literal["auto"] = "auto"
    """N_A: agent processes; `"auto"` means eight for each core that the child may use."""
    environments: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Environments of an agent; several share its process and the cost of asking."""
    predictors: Natural = 1
    """N_P: threads that predict."""
    trainers: Natural = 1
    """N_T: threads that train."""
    prediction_batch: Natural = 128
    """Observations of a prediction, at most."""
    training_batch: Count = 0
    """Steps of an update, at least: rollouts of several agents are grouped until there are this
    many; 0 means one rollout."""
    rollouts: Annotated[int, Meta(ge=2)] = 3
    """Rollouts of an environment in memory. The agent fills one, and the others wait for a
    trainer; when all are full, the agent waits."""
    dynamic: bool = True
    """Whether N_P, N_T and N_A adjust themselves to give the most training batches a second."""
    window_seconds: Positive = 20.0
    """`dynamic`: length of the measurement of each setting."""
    max_predictors: Natural = 4
    """`dynamic`: the largest N_P."""
    max_trainers: Natural = 4
    """`dynamic`: the largest N_T."""
    max_agents: Natural = 64
    """The largest N_A."""


def check(given: dict[str, Any], experiment: Experiment, source: str) -> None:
    """Checks `[ga3c]`, and that nothing is set which only cores of the backend hogwild have."""
    settings: GA3CSettings = experiment.ga3c
    for key in ("predictors", "trainers", "agents"):
        number, limit = getattr(settings, key), getattr(settings, f"max_{key}")
        if number != "auto" and number > limit and (settings.dynamic or key == "agents"):
            raise ConfigurationError(
                f"{source}: ga3c.{key} = {number}: at most ga3c.max_{key} = {limit} is allowed"
            )
    if experiment.child.backend != "ga3c":
        return
    if (lanes := experiment.environment.lanes) != 1:
        raise ConfigurationError(
            f"{source}: environment.lanes = {lanes}: the backend ga3c has ga3c.environments "
            "instead; take environment.lanes out"
        )
    if steps := experiment.replay_steps:
        raise ConfigurationError(
            f"{source}: replay.steps = {steps}: the backend ga3c has no replay tensor; "
            "set it to 0, or child.backend to 'hogwild'"
        )
    if steps := experiment.network.sde_steps:
        raise ConfigurationError(
            f"{source}: network.sde_steps = {steps}: the backend ga3c draws each action by itself; "
            "set it to 0, or child.backend to 'hogwild'"
        )
    for key in ("epsilon_versions", "epsilon_spread"):
        if number := getattr(experiment.algorithm, key):
            raise ConfigurationError(
                f"{source}: algorithm.{key} = {number:g}: the backend ga3c has one ε for all "
                "agents, which follows the run alone; set it to 0, or child.backend to 'hogwild'"
            )
    if experiment.child.exchange == "update":
        raise ConfigurationError(
            f"{source}: child.exchange = 'update': the cores of the backend hogwild can wait for "
            "each update, ga3c cannot; set child.exchange to 'free', or child.backend to 'hogwild'"
        )
