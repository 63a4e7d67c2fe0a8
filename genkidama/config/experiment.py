"""The experiment: every setting of a run, decoded from TOML and checked before anything starts.

The parent owns the experiment and sends it to each child, so a new machine needs no file of its
own. Pure but for one thing: `read_toml` reads the file that it is given.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import tomli_w

from genkidama.config.decoding import NAME, Finite, Meta, Section, convert
from genkidama.config.sections import (
    Algorithm,
    ChildSettings,
    Environment,
    GA3CSettings,
    Network,
    Optimizer,
    ParentSettings,
    ReplaySettings,
    Stop,
    Wrapper,
)
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.plugins.gorila.checks import check_replay
from genkidama.plugins.hypertrick.settings import SearchSettings, check_search
from genkidama.protocol.messages import Kind
from genkidama.server.rules.registry import RULES, check_push, make_rule, pushes

__all__ = [
    "Algorithm",
    "ChildSettings",
    "Environment",
    "Experiment",
    "GA3CSettings",
    "Network",
    "Optimizer",
    "ParentSettings",
    "ReplaySettings",
    "SearchSettings",
    "Stop",
    "Wrapper",
    "check_algorithm",
    "applicable_settings",
    "read_toml",
]


# ------------------------------------------------------------------------------------------------
# Which settings of `[algorithm]` which algorithm has, and what it needs beside them. Pure.

#: The algorithms that learn from samples of the replay tensor.
_OFF_POLICY = ("dqn", "vtrace")

#: The settings that some algorithms alone have. One of a user's own has all.
_OWN = {
    "epochs": ("ppo",),
    "minibatch_size": ("ppo", *_OFF_POLICY),
    "clip": ("ppo",),
    "start_steps": _OFF_POLICY,
    "batch_updates": _OFF_POLICY,
    "n_steps": _OFF_POLICY,
    "double": ("dqn",),
    "dueling": ("dqn",),
    "huber": ("dqn",),
    "target_updates": ("dqn",),
    "target_versions": ("dqn",),
}


def applicable_settings(section: dict[str, Any], name: str) -> dict[str, Any]:
    """What of `[algorithm]` the algorithm of this name has."""
    return {
        key: value
        for key, value in section.items()
        if ":" in str(name) or name in _OWN.get(key, (name,))
    }


def check_algorithm(given: dict[str, Any], experiment: Experiment, source: str) -> None:
    """Checks the settings as they were given, and those that an off-policy learner needs.

    Raises:
        ConfigurationError: a setting of another algorithm, or one without which nothing is learned.
    """
    algorithm, replay = experiment.algorithm, experiment.replay
    name = algorithm.name
    for key, value in given.get("algorithm", {}).items():
        if key not in applicable_settings({key: value}, name):
            names = " or ".join(map(repr, _OWN[key]))
            raise ConfigurationError(
                f"{source}: algorithm.{key} = {value!r}: "
                f"only algorithm.name = {names} has this setting"
            )
    if replay.priority_exponent and not replay.steps:
        raise ConfigurationError(
            f"{source}: replay.priority_exponent = {replay.priority_exponent}: with "
            "replay.steps = 0 nothing is kept that could be drawn; set that, too"
        )
    if name not in _OFF_POLICY:
        return
    if experiment.sends_experience:
        raise ConfigurationError(
            f"{source}: algorithm.name = {name!r}: samples what its own child remembers, but with "
            "parent.rule = 'experience' children only act; take another parent.rule"
        )
    if not replay.steps:
        raise ConfigurationError(
            f"{source}: replay.steps = 0: {name!r} samples the replay tensor; set it to how many "
            "steps each core is to keep, with child.backend = 'hogwild'"
        )
    if algorithm.start_steps > replay.steps:
        raise ConfigurationError(
            f"{source}: algorithm.start_steps = {algorithm.start_steps}: at most replay.steps = "
            f"{replay.steps} is allowed, or a child with one core would never learn"
        )
    if name == "dqn" and not (algorithm.target_updates or algorithm.target_versions):
        raise ConfigurationError(
            f"{source}: algorithm.target_updates = 0: with target_versions = 0 too, θ⁻ would never "
            "follow θ; set one of them"
        )


class Experiment(Section, frozen=True):
    """Every setting of a run.

    It is frozen: `msgspec.structs.replace` makes a changed copy, `with_settings` a checked one.
    """

    name: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z", extra={"expected": NAME})
    ] = "experiment"
    """What the run directory is named after; the file's name if absent."""
    seed: Annotated[int, Meta(ge=0, lt=2**31)] = 0
    """Seed of weights, environments and actions. Asynchronous runs are not repeatable bit for
    bit, even so."""
    solved: Finite | None = None
    """The task counts as solved from this mean return of an evaluation on; Gymnasium's
    threshold if absent."""
    environment: Environment = Environment()
    network: Network = Network()
    algorithm: Algorithm = Algorithm()
    replay: ReplaySettings = ReplaySettings()
    optimizer: Optimizer = Optimizer()
    parent: ParentSettings = ParentSettings()
    child: ChildSettings = ChildSettings()
    ga3c: GA3CSettings = GA3CSettings()
    stop: Stop = Stop()
    search: SearchSettings | None = None

    def __post_init__(self) -> None:
        short: Any = self.environment
        if isinstance(short, str | type):  # its id alone
            environment = Environment(id=cast(str, short))
            msgspec.structs.force_setattr(self, "environment", environment)
        super().__post_init__()

    @property
    def pushes(self) -> Kind:
        """What a child pushes: `"weights"`, `"difference"`, `"gradient"` or `"experience"`."""
        return pushes(self)

    @property
    def sends_experience(self) -> bool:
        """Whether children act for a learner on the parent's machine, and send it their steps."""
        return self.pushes == "experience"

    @property
    def role(self) -> Literal["bundle", "act", "learn"]:
        """What a child does, in the experiment that its parent has told it."""
        return self.child.roles[0] if len(self.child.roles) == 1 else "bundle"

    @property
    def shares_replay(self) -> bool:
        """Whether all children share one replay, which an engine keeps."""
        return self.replay.url != "local"

    @property
    def pull(self) -> float:
        """How far a child moves towards θ_P at an exchange: β, or all the way."""
        return self.child.beta if self.pushes == "weights" else 1.0

    @classmethod
    def load(cls, path: str | Path) -> Experiment:
        """Reads an experiment from a TOML file.

        Raises:
            ConfigurationError: the file is missing or no TOML, or a key, type or range is wrong.
                The message names the file, the key, the value and what is allowed.
        """
        path = Path(path)
        settings = read_toml(path)
        settings.setdefault(
            "name", re.sub(r"[^A-Za-z0-9._-]", "-", path.stem).lstrip("-._") or "experiment"
        )
        return cls.from_dict(settings, source=str(path))

    @classmethod
    def from_dict(cls, settings: dict[str, Any], source: str = "the experiment") -> Experiment:
        """Checks nested settings, as TOML gives them.

        Raises:
            ConfigurationError: as `load`, with `source` in the file's place.
        """
        experiment = convert(settings, cls, source)
        _check_combination(settings, experiment, source)
        return experiment

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values that `from_dict` accepts, without the absent settings."""
        settings: dict[str, Any] = msgspec.to_builtins(self)
        for section in ("stop", "search"):
            if settings[section] is not None:
                settings[section] = {
                    key: value for key, value in settings[section].items() if value is not None
                }
        settings["algorithm"] = applicable_settings(settings["algorithm"], self.algorithm.name)
        return {key: value for key, value in settings.items() if value is not None}

    def to_toml(self) -> str:
        """The experiment as a TOML document."""
        return tomli_w.dumps(self.to_dict())

    def with_settings(self, changes: dict[str, Any], source: str = "--set") -> Experiment:
        """A checked copy with single settings changed. Keys are dotted, as `child.exchange`.

        Raises:
            ConfigurationError: no such key, or a value that it does not allow.
        """
        settings = self.to_dict()
        if (name := changes.get("algorithm.name")) is not None:
            settings["algorithm"] = applicable_settings(settings["algorithm"], name)
        for key, value in changes.items():
            *sections, last = key.split(".")
            where = settings
            for section in sections:
                where = where.setdefault(section, {})
                if not isinstance(where, dict):
                    raise ConfigurationError(f"{source}: {key}: {section!r} is no section")
            where[last] = value
        return type(self).from_dict(settings, source=source)


#: No file of settings is larger.
_MOST_BYTES = 1 << 20


def read_toml(path: str | Path) -> dict[str, Any]:
    """The file's settings.

    Raises:
        ConfigurationError: it cannot be read or is no TOML.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ConfigurationError(
                f"{path}: not settings: more than {_MOST_BYTES >> 20} MiB; name another file"
            )
        return tomllib.loads(text.decode())
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigurationError(f"{path}: is a directory, expected a TOML file") from None
    except RecursionError:
        raise ConfigurationError(f"{path}: not settings: it is nested too deeply") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise EnvironmentFailure(f"{path}: cannot be read: {error.strerror}") from None


def _check_actors(experiment: Experiment, source: str) -> None:
    """Checks that the children can act for a learner."""
    for key, value, wanted in (
        ("child.backend", experiment.child.backend, "hogwild"),
        ("algorithm.epsilon", experiment.algorithm.epsilon, 0.0),
        ("replay.steps", experiment.replay.steps, 0),
        ("algorithm.across_episodes", experiment.algorithm.across_episodes, True),
    ):
        if value != wanted:
            raise ConfigurationError(
                f"{source}: {key} = {value!r}: with parent.rule = 'experience' "
                f"only {wanted!r} is possible"
            )


def _check_lanes(experiment: Experiment, source: str) -> None:
    lanes, algorithm = experiment.environment.lanes, experiment.algorithm
    if lanes == 1:
        return
    key = f"{source}: environment.lanes = {lanes}"
    if experiment.child.backend == "ga3c":
        raise ConfigurationError(
            f"{key}: the backend ga3c has ga3c.environments instead; take environment.lanes out"
        )
    if not algorithm.across_episodes:
        raise ConfigurationError(
            f"{key}: episodes in several lanes do not end together, "
            "but algorithm.across_episodes = False ends a batch with its episode; set it to true"
        )
    if algorithm.batch_size % lanes:
        applicable_settings = max(1, algorithm.batch_size // lanes) * lanes
        raise ConfigurationError(
            f"{key}: does not divide algorithm.batch_size = {algorithm.batch_size}; "
            f"set that to {applicable_settings}, for instance"
        )


def _check_combination(given: dict[str, Any], experiment: Experiment, source: str) -> None:
    """Checks what no single field's type can say."""
    algorithm = experiment.algorithm
    check_algorithm(given, experiment, source)
    learns_itself = not experiment.sends_experience
    small = algorithm.minibatch_size > algorithm.batch_size
    if algorithm.name == "ppo" and small and learns_itself:
        raise ConfigurationError(
            f"{source}: algorithm.minibatch_size = {algorithm.minibatch_size}: "
            f"at most algorithm.batch_size = {algorithm.batch_size} is allowed"
        )
    child = experiment.child
    if not learns_itself:
        _check_actors(experiment, source)
    _check_lanes(experiment, source)
    if steps := experiment.replay.steps:
        if steps < algorithm.batch_size:
            raise ConfigurationError(
                f"{source}: replay.steps = {steps}: at least algorithm.batch_size = "
                f"{algorithm.batch_size} is needed; 0 keeps the newest batch alone"
            )
        if child.backend == "ga3c":
            raise ConfigurationError(
                f"{source}: replay.steps = {steps}: the backend ga3c has no replay tensor; "
                "set it to 0, or child.backend to 'hogwild'"
            )
    check_replay(experiment, source)
    on_policy = child.backend == "hogwild" and learns_itself
    other = algorithm.name in ("ppo", "dqn", "vtrace")
    if algorithm.vtrace and (other or on_policy):
        key, value = ("algorithm.name", algorithm.name) if other else ("child.backend", "hogwild")
        raise ConfigurationError(
            f"{source}: algorithm.vtrace = True: is for a3c with the backend ga3c "
            "or with parent.rule = 'experience', "
            f"but {key} = {value!r}"
        )
    if algorithm.vtrace and algorithm.epsilon:
        raise ConfigurationError(
            f"{source}: algorithm.vtrace = True: knows the policy's own actions only; "
            "set algorithm.epsilon to 0"
        )
    environment = experiment.environment
    if environment.wrappers and (environment.vectorized or environment.envpool is not None):
        name = environment.wrappers[0].name
        if environment.envpool is None:
            kind, cause = "a vectorized environment", "environment.vectorized"
        else:
            kind, cause = "an environment of EnvPool's", "'envpool:' of environment.id"
        raise ConfigurationError(
            f"{source}: environment.wrappers: {name!r} cannot be put around {kind}; "
            f"take out {cause} or the wrappers"
        )
    ga3c = experiment.ga3c
    for key in ("predictors", "trainers", "agents"):
        number, limit = getattr(ga3c, key), getattr(ga3c, f"max_{key}")
        if number != "auto" and number > limit and (ga3c.dynamic or key == "agents"):
            raise ConfigurationError(
                f"{source}: ga3c.{key} = {number}: at most ga3c.max_{key} = {limit} is allowed"
            )
    if child.exchange == "free" and not child.exchange_seconds and not child.exchange_steps:
        raise ConfigurationError(
            f"{source}: child.exchange_seconds = 0: with exchange_steps = 0 too, "
            "a free child would never exchange; set one of them"
        )
    _check_rule(experiment, source)
    if not experiment.parent.checkpoint_updates and not experiment.parent.checkpoint_seconds:
        raise ConfigurationError(
            f"{source}: parent.checkpoint_seconds = 0: with checkpoint_updates = 0 too, "
            "nothing would be saved on the way; set one of them"
        )
    if experiment.search is not None:
        plain = msgspec.structs.replace(experiment, search=None)
        check_search(experiment.search, experiment.stop, plain.with_settings, source)


def _check_rule(experiment: Experiment, source: str) -> None:
    """Checks a rule that has a name; the parent checks one of one's own when it makes it."""
    parent, child = experiment.parent, experiment.child
    if parent.average and experiment.search is not None:
        raise ConfigurationError(
            f"{source}: parent.average = {parent.average}: a search keeps no running mean; "
            "set it to 0"
        )
    if child.exchange == "update" and child.backend == "ga3c":
        raise ConfigurationError(
            f"{source}: child.exchange = 'update': the cores of the backend hogwild can wait for "
            "each update, ga3c cannot; set child.exchange to 'free', or child.backend to 'hogwild'"
        )
    if parent.rule not in RULES:
        return
    try:
        check_push(experiment, make_rule(experiment).takes)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}") from None
