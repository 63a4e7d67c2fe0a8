"""`[replay]`, and the checks of algorithms that sample it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from genkidama.config.decoding import NAME, Count, Fraction, Meta, Section
from genkidama.config.formatting import without_password
from genkidama.errors import ConfigurationError

if TYPE_CHECKING:
    from genkidama.config.experiment import Experiment


class ReplaySettings(Section, frozen=True):
    """`[replay]`: the steps that are kept, for algorithms that learn from samples."""

    steps: Count = 0
    """Steps that each core keeps, at least a batch; 0 means only its newest batch. If `url` is not
    `"local"`, the steps that are kept in total."""
    priority_exponent: Fraction = 0.0
    """`dqn`: α of prioritized replay: a step is drawn with a probability in proportion to |δ|^α, δ
    being its error; 0 means uniformly."""
    correction: Fraction = 0.4
    """With priorities: β, the exponent of the importance weights in the loss at the start of the
    run; it rises to 1."""
    url: Annotated[
        str,
        Meta(
            pattern=r"^(local|embedded|rediss?://([^@/\s]*@)?"
            r"([^:@/\s]+|\[[^\]\s]+\])?(:\d{1,5})?(/\d*)?)\Z",
            extra={"expected": "'local', 'embedded' or 'redis://[:PASSWORD@]HOST[:PORT]'"},
        ),
    ] = "local"
    """Place of the steps: `"local"`, each child's memory; or one place for all children, by Valkey
    or Redis: `"embedded"`, which the parent starts, or your own, `"redis://:PASSWORD@HOST:PORT"`
    or, with TLS, `"rediss://…"`."""
    name: Annotated[
        str,
        Meta(max_length=64, pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?\Z", extra={"expected": NAME}),
    ] = ""
    """Name of this replay there; empty means the run's name."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """`embedded`: its port on the parent's machine; 0 means any free port."""


def check(given: dict[str, Any], experiment: Experiment, source: str) -> None:
    """Checks `[replay]`, the algorithms that sample it, and `child.roles`."""
    replay: ReplaySettings = experiment.replay
    algorithm = experiment.algorithm
    if replay.priority_exponent and not replay.steps:
        raise ConfigurationError(
            f"{source}: replay.priority_exponent = {replay.priority_exponent}: with "
            "replay.steps = 0 nothing is kept that could be drawn; set that, too"
        )
    if algorithm.demonstrations and algorithm.name not in ("dqn", "sac"):
        _check_demonstrations(experiment, source)
    if algorithm.name in ("dqn", "vtrace", "sac"):
        _check_off_policy(experiment, source)
    if replay.steps and replay.steps < algorithm.batch_size:
        raise ConfigurationError(
            f"{source}: replay.steps = {replay.steps}: at least algorithm.batch_size = "
            f"{algorithm.batch_size} is needed; 0 keeps the newest batch alone"
        )
    _check_shared(experiment, source)


def _check_off_policy(experiment: Experiment, source: str) -> None:
    algorithm, replay = experiment.algorithm, experiment.replay
    if experiment.sends_experience and algorithm.name != "sac":
        raise ConfigurationError(
            f"{source}: algorithm.name = {algorithm.name!r}: samples what its own child remembers, "
            "but with parent.rule = 'experience' children only act; take another parent.rule"
        )
    if not replay.steps:
        raise ConfigurationError(
            f"{source}: replay.steps = 0: {algorithm.name!r} samples the replay tensor; set it to "
            "how many steps each core is to keep, with child.backend = 'hogwild'"
        )
    if algorithm.start_steps > replay.steps:
        raise ConfigurationError(
            f"{source}: algorithm.start_steps = {algorithm.start_steps}: at most replay.steps = "
            f"{replay.steps} is allowed, or a child with one core would never learn"
        )
    if algorithm.name == "dqn" and not (algorithm.target_updates or algorithm.target_versions):
        raise ConfigurationError(
            f"{source}: algorithm.target_updates = 0: with target_versions = 0 too, θ⁻ would never "
            "follow θ; set one of them"
        )


def _check_demonstrations(experiment: Experiment, source: str) -> None:
    """Checks that an algorithm of the user's own has a replay beside which they can be."""
    if not experiment.replay.steps or experiment.sends_experience:
        key, value = "replay.steps", experiment.replay.steps
        if experiment.sends_experience:
            key, value = "parent.rule", "experience"
        raise ConfigurationError(
            f"{source}: algorithm.demonstrations: are drawn beside the replay of a child, but "
            f"{key} = {value!r}; set replay.steps and another parent.rule, or take them out"
        )


def _check_shared(experiment: Experiment, source: str) -> None:
    """Checks `replay.url` and `child.roles` against the other settings."""
    replay, roles = experiment.replay, experiment.child.roles
    local = replay.url == "local"
    key = f"{source}: replay.url = {without_password(replay.url)!r}"
    if not local and not replay.steps:
        raise ConfigurationError(
            f"{key}: with replay.steps = 0 nothing is kept there; set it to how many steps all "
            "children keep together"
        )
    if not local and experiment.searches:
        raise ConfigurationError(
            f"{key}: in a search each child trains a trial of its own, so there is nothing to "
            "share; set it to 'local'"
        )
    if set(roles) == {"bundle"}:
        return
    key = f"{source}: child.roles = {list(roles)}"
    if local:
        raise ConfigurationError(
            f"{key}: children that only act, or only learn, share a replay; "
            "set replay.url to 'embedded'"
        )
    environment = experiment.environment
    for name in ("normalize_observations", "normalize_rewards"):
        if getattr(environment, name):
            raise ConfigurationError(
                f"{key}: the statistics of environment.{name} = True come from children that act "
                "and learn; set it to false, or child.roles to ['bundle']"
            )
