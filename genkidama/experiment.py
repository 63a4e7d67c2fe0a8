"""The experiment: every setting of a run, decoded from TOML and checked before anything starts.

The parent owns the experiment and sends it to each child, so a new machine needs no file of its own.
Unknown keys are errors, ranges are part of the types, and a line below each field says what it does.
The sections' names are public and stay.
"""

from __future__ import annotations

import difflib
import re
import tomllib
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import tomli_w

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.hypertrick.rule import geometric_phases
from genkidama.hypertrick.space import parse_space

__all__ = [
    "Algorithm",
    "ChildSettings",
    "Environment",
    "Experiment",
    "GA3CSettings",
    "Network",
    "Optimizer",
    "ParentSettings",
    "Role",
    "SearchSettings",
    "Stop",
    "Wrapper",
    "read_toml",
]

_M = msgspec.Meta
Fraction = Annotated[float, _M(ge=0.0, le=1.0)]
Positive = Annotated[float, _M(gt=0.0, le=1e30)]
NotNegative = Annotated[float, _M(ge=0.0, le=1e30)]
Finite = Annotated[float, _M(ge=-1e30, le=1e30)]
Natural = Annotated[int, _M(ge=1)]
Count = Annotated[int, _M(ge=0)]


def _plug(*names: str) -> msgspec.Meta:
    """One of our own by name, or a plug of the user's: `"package.module:Name"`."""
    pattern = "|".join((*names, r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"))
    expected = f"one of {', '.join(map(repr, names))}, or an import string 'module:Name'"
    return _M(pattern=rf"^({pattern})\Z", extra={"expected": expected})


_NAME = "letters, digits, '.', '_' and '-', a letter or digit first"


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Wrapper(_Section, frozen=True):
    """One of `environment.wrappers`."""

    name: Annotated[
        str, _M(pattern=r"^[A-Za-z_][\w.]*(:[A-Za-z_]\w*)?\Z", extra={"expected": "a wrapper of Gymnasium's or 'module:Class'"})
    ]
    """A class of `gymnasium.wrappers`, as `"FrameStackObservation"`, or `"module:Class"`."""
    options: dict[str, Any] = {}
    """Its keyword arguments."""


class Environment(_Section, frozen=True):
    """`[environment]`: what is learned."""

    id: Annotated[str, _M(min_length=1)] = "LunarLander-v3"
    """A Gymnasium id, or `"module:callable"` that returns an environment."""
    options: dict[str, Any] = {}
    """Keyword arguments for the environment."""
    wrappers: tuple[Wrapper, ...] = ()
    """What is put around it, the innermost first: `{ name = "FrameStackObservation", options = { stack_size = 4 } }`, …."""
    vectorized: bool = False
    """Whether its own vectorized form (ALE has one) is taken, which does the preprocessing: `options` are for that, `wrappers` none."""
    normalize_observations: bool = False
    """Subtract the running mean of the observations and divide by their standard deviation."""
    normalize_rewards: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    reward_scale: Positive = 1.0
    """Every reward is multiplied by this before it is learned from (never in what is reported)."""
    clip_rewards: NotNegative = 0.0
    """Scaled rewards are cut to ± this before they are learned from; 0 means no limit."""


class Network(_Section, frozen=True):
    """`[network]`: what acts and values."""

    name: Annotated[str, _plug("actor-critic", "convolutional")] = "actor-critic"
    """`"actor-critic"` (for vectors), `"convolutional"` (for images, channels first), or `"module:Class"`, a subclass of `Network`."""
    convolutions: Annotated[tuple[tuple[Natural, Natural, Natural], ...], _M(min_length=1)] = ((16, 8, 4), (32, 4, 2))
    """`convolutional`: channels, kernel and stride of each convolution."""
    hidden: Annotated[tuple[Natural, ...], _M(min_length=1)] = (128,)
    """Width of each hidden layer."""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """What stands between layers."""
    shared: bool = False
    """Whether policy and value share their hidden layers."""
    initialization: Literal["orthogonal", "normal", "uniform"] = "orthogonal"
    """`"orthogonal"` (gain √2, policy head 0.01, value head 1), `"normal"`; biases 0. Or `"uniform"`, all within ±1/√inputs."""
    initial_deviation: Positive = 0.1
    """Standard deviation of the weights with `"normal"`."""
    options: dict[str, Any] = {}
    """Keyword arguments for a network of one's own."""


class Algorithm(_Section, frozen=True):
    """`[algorithm]`: how a core learns from what it saw."""

    name: Annotated[str, _plug("a3c", "ppo")] = "ppo"
    """`"a3c"`, `"ppo"`, or `"module:Class"`."""
    gamma: Fraction = 0.99
    """Discount factor γ of a step."""
    gae_lambda: Fraction = 1.0
    """λ of generalized advantage estimation; 1 gives n-step returns."""
    batch_size: Natural = 120
    """Steps a core collects before it learns from them (N of the replay tensor)."""
    across_episodes: bool = True
    """Whether a batch goes on past an episode's end; false learns at every episode's end, as documented for A3C."""
    pull_steps: Count = 0
    """A core takes the child's weights every so many steps; 0 means after each of its own updates."""
    epsilon: Fraction = 0.0
    """Probability of a uniformly random action."""
    value_coefficient: NotNegative = 0.5
    """Weight of the value loss."""
    entropy_coefficient: NotNegative = 0.0
    """Weight of the policy's entropy at the start."""
    entropy_schedule: Literal["constant", "linear"] = "constant"
    """How it goes from `entropy_coefficient` to `final_entropy_coefficient` as the run progresses."""
    final_entropy_coefficient: NotNegative = 0.0
    """Weight of the policy's entropy at the end, with a schedule."""
    reduction: Literal["mean", "sum"] = "mean"
    """Whether a loss is the mean or the sum over its steps."""
    normalize_advantages: bool = False
    """Whether each batch's advantages are brought to mean 0 and standard deviation 1."""
    max_gradient_norm: NotNegative = 0.0
    """Longest gradient, by its Euclidean norm; 0 means no limit."""
    vtrace: bool = False
    """`a3c` with `ga3c`: corrects by V-trace for the updates between acting and learning."""
    vtrace_rho: Positive = 1.0
    """`vtrace`: ρ̄, the largest weight of a step's temporal difference."""
    vtrace_c: Positive = 1.0
    """`vtrace`: c̄, the largest weight with which a difference reaches back a step."""
    epochs: Natural = 4
    """`ppo`: how many times a batch is used."""
    minibatch_size: Natural = 64
    """`ppo`: steps of each update."""
    clip: Positive = 0.2
    """`ppo`: how far the probability ratio may move from 1."""
    options: dict[str, Any] = {}
    """Keyword arguments for an algorithm of one's own."""


class Optimizer(_Section, frozen=True):
    """`[optimizer]`: how a gradient becomes a step on the child's shared vector."""

    name: Literal["sgd", "rmsprop", "adam"] = "adam"
    """The update rule."""
    learning_rate: Positive = 3e-4
    """Step size at the start."""
    schedule: Literal["constant", "linear"] = "constant"
    """How the learning rate goes from `learning_rate` to `final_learning_rate` as the run progresses."""
    final_learning_rate: NotNegative = 0.0
    """Step size at the end, with a schedule."""
    momentum: Annotated[float, _M(ge=0.0, lt=1.0)] = 0.0
    """`sgd`: momentum."""
    weight_decay: NotNegative = 0.0
    """Added to the gradient: this times the weights."""
    decay: Annotated[float, _M(ge=0.0, lt=1.0)] = 0.99
    """`rmsprop`: decay of the squared gradients."""
    betas: tuple[Annotated[float, _M(ge=0.0, lt=1.0)], Annotated[float, _M(ge=0.0, lt=1.0)]] = (0.9, 0.999)
    """`adam`: decay of the first and second moment."""
    epsilon: Positive = 1e-8
    """`rmsprop`, `adam`: added to the denominator."""
    epsilon_inside: bool = False
    """`rmsprop`: whether `epsilon` is added under the root, as in Mnih et al. 2016 and TensorFlow, or to the root, as in torch."""
    shared: bool = True
    """Whether the cores of a child share the optimizer's state; false gives each core its own."""


class ParentSettings(_Section, frozen=True):
    """`[parent]`: the machine that holds the weights."""

    alpha: Fraction = 0.5
    """How far the parent moves towards each push: θ_P ← (1−α)θ_P + αθ_C."""
    listen: Annotated[str, _M(min_length=1)] = "127.0.0.1:8765"
    """`HOST:PORT`; `0.0.0.0:8765` lets other machines in."""
    checkpoint_updates: Count = 0
    """Checkpoint every so many updates; 0 means by time only."""
    checkpoint_seconds: NotNegative = 30.0
    """Checkpoint every so many seconds; 0 means by updates only."""
    checkpoint_keep: Natural = 5
    """How many of the last checkpoints to keep, beside the best."""
    history_every: Natural = 1
    """Write every n-th exchange to the history."""
    silence_seconds: Positive = 120.0
    """Close a connection that has said nothing, not even answered a ping, for so long."""
    max_children: Natural = 1024
    """How many children may be connected at once."""
    max_parameters: Natural = 100_000_000
    """The largest network that is accepted, in numbers; it bounds the size of a message."""
    tokens_file: str = ""
    """Who may join: a file of lines `NAME TOKEN`, `*` for any name, read again at every handshake; empty lets everybody in."""
    certificate_file: str = ""
    """PEM certificate, and those between it and its authority; with `key_file` the parent speaks `wss://`."""
    key_file: str = ""
    """PEM private key of that certificate."""


class ChildSettings(_Section, frozen=True):
    """`[child]`: what every child does."""

    beta: Fraction = 0.5
    """How far a child moves towards the parent's answer: θ_C ← (1−β)θ_C + βθ_P."""
    backend: Annotated[str, _plug("hogwild", "ga3c")] = "hogwild"
    """`"hogwild"` (each core acts and learns), `"ga3c"` (many agents, one model), or `"module:Class"`."""
    exchange: Literal["episode", "free"] = "episode"
    """`"episode"`: once per episode of the whole child, its cores waiting; `"free"`: nobody waits."""
    exchange_seconds: NotNegative = 1.0
    """`free`: exchange every so many seconds; 0 means by steps only."""
    exchange_steps: Count = 0
    """`free`: exchange every so many steps of the child; 0 means by seconds only."""
    cores: Natural | Literal["auto"] = "auto"
    """Core processes of a child; `"auto"` means one for each CPU core that it may use, as far as they fit into the memory there is."""


class GA3CSettings(_Section, frozen=True):
    """`[ga3c]`: the backend `"ga3c"`, in which many agents share one model. `algorithm.batch_size` is its t_max."""

    device: Annotated[str, _M(pattern=r"^(auto|cpu|cuda(:\d+)?)\Z", extra={"expected": "'auto', 'cpu', 'cuda' or 'cuda:N'"})] = "auto"
    """Where the model is: `"cpu"`, `"cuda"`, `"cuda:N"`; `"auto"` means a GPU if there is one."""
    agents: Natural | Literal["auto"] = "auto"
    """N_A: agent processes; `"auto"` means eight for each core that the child may use."""
    environments: Annotated[int, _M(ge=1, le=1024)] = 1
    """Environments of an agent; several share its process and the cost of asking."""
    predictors: Natural = 1
    """N_P: threads that predict."""
    trainers: Natural = 1
    """N_T: threads that train."""
    prediction_batch: Natural = 128
    """Observations of a prediction, at most."""
    training_batch: Count = 0
    """Steps of an update, at least: rollouts of several agents are grouped until there are so many; 0 means one rollout."""
    rollouts: Annotated[int, _M(ge=2)] = 3
    """Rollouts of an environment in memory: one is filled, the others wait to be learned from; when all are full, the agent waits."""
    dynamic: bool = True
    """Whether N_P, N_T and N_A are adjusted to what gives the most training batches a second."""
    window_seconds: Positive = 20.0
    """`dynamic`: how long each setting is measured."""
    max_predictors: Natural = 4
    """`dynamic`: the largest N_P."""
    max_trainers: Natural = 4
    """`dynamic`: the largest N_T."""
    max_agents: Natural = 64
    """The largest N_A."""


class Stop(_Section, frozen=True):
    """`[stop]`: the run ends when the first of these is reached; absent ones never are."""

    updates: Natural | None = None
    """Exchanges a child, on average."""
    episodes: Natural | None = None
    """Episodes of all children."""
    seconds: Positive | None = None
    """Wall-clock time since the first child joined."""
    mean_return: Finite | None = None
    """Mean return of the last `window` training episodes of all children."""
    window: Natural = 100
    """How many episodes that mean is taken over."""


class SearchSettings(_Section, frozen=True):
    """`[search]`: makes the run a search for hyperparameters, in which each child trains one trial after another."""

    method: Literal["hypertrick", "random"] = "hypertrick"
    """`"hypertrick"` stops the trials that do worse; `"random"` lets every trial run to its end."""
    trials: Natural = 16
    """W₀: trials to start in all."""
    phases: Natural = 10
    """N_p: phases of a trial; it reports after each."""
    phase_steps: Natural | None = None
    """Length of a phase in environment steps."""
    phase_episodes: Natural | None = None
    """Length of a phase in episodes, instead."""
    phase_seconds: Positive | None = None
    """Length of a phase in seconds of a node's time, instead."""
    eviction_rate: Annotated[float, _M(gt=0.0, lt=1.0)] = 0.25
    """r: the share of trials that is meant to be stopped after each phase in which anything is decided."""
    decisions: Literal["every", "geometric"] = "every"
    """After which phases trials are stopped: every one but the last, or after 1, `factor`, `factor`², … of them."""
    factor: Annotated[int, _M(ge=2)] = 3
    """`geometric`: the factor from one decision to the next."""
    cohort: Count = 0
    """W₀ of equation 2, if it is not `trials`: how many trials collect data, in a search with as many as there is time for."""
    adaptive: bool = False
    """Whether the rule stops more when fewer than expected were stopped so far."""
    sampler: Annotated[str, _plug("random", "tpe")] = "random"
    """Where new trials' settings come from: `"random"`, `"tpe"`, or `"module:Class"`, a sampler of Optuna's."""
    sampler_options: dict[str, Any] = {}
    """Keyword arguments for the sampler."""
    seconds: Positive | None = None
    """Wall-clock time of the whole search, from the first trial's start; trials under way then are cut off."""
    retries: Count = 1
    """How often a trial is given to another node after its node has failed, before it counts as the worst."""
    return_seconds: NotNegative = 30.0
    """How long a node that has vanished may take to return to its trial before another node goes on with it."""
    storage: str = ""
    """Optuna's storage URL, as `postgresql+psycopg://…`; empty means a SQLite file in the run's directory."""
    space: dict[str, Any] = {}
    """Settings to vary: `{ low, high, log, step }` or a list of choices for each dotted key."""

    @property
    def unit(self) -> Literal["steps", "episodes", "seconds"]:
        """What a phase is measured in."""
        return "steps" if self.phase_steps else "episodes" if self.phase_episodes else "seconds"

    @property
    def length(self) -> float:
        """Length of a phase in its unit."""
        return self.phase_steps or self.phase_episodes or self.phase_seconds or 0

    @property
    def decide_after(self) -> tuple[int, ...]:
        """The phases, from 0, after which trials may be stopped."""
        return geometric_phases(self.phases, self.factor) if self.decisions == "geometric" else tuple(range(self.phases - 1))


class Experiment(_Section, frozen=True):
    """Every setting of a run. Frozen; `msgspec.structs.replace` makes a changed copy, `with_settings` a checked one."""

    name: Annotated[str, _M(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z", extra={"expected": _NAME})] = "experiment"
    """What the run directory is named after; the file's name if absent."""
    seed: Annotated[int, _M(ge=0, lt=2**31)] = 0
    """Seed of weights, environments and actions. Asynchronous runs are not bit-for-bit repeatable all the same."""
    solved: Finite | None = None
    """An evaluation's mean return from which on the task counts as solved; Gymnasium's threshold if absent."""
    environment: Environment = Environment()
    network: Network = Network()
    algorithm: Algorithm = Algorithm()
    optimizer: Optimizer = Optimizer()
    parent: ParentSettings = ParentSettings()
    child: ChildSettings = ChildSettings()
    ga3c: GA3CSettings = GA3CSettings()
    stop: Stop = Stop()
    search: SearchSettings | None = None

    @classmethod
    def load(cls, path: str | Path) -> Experiment:
        """Reads an experiment from a TOML file.

        Raises:
            ConfigurationError: the file is missing or no TOML, or a key, type or range is wrong; the
                message names the file, the key, the value and what is allowed.
        """
        path = Path(path)
        settings = read_toml(path)
        settings.setdefault("name", re.sub(r"[^A-Za-z0-9._-]", "-", path.stem).lstrip("-._") or "experiment")
        return cls.from_dict(settings, source=str(path))

    @classmethod
    def from_dict(cls, settings: dict[str, Any], source: str = "the experiment") -> Experiment:
        """Checks nested settings, as TOML gives them.

        Raises:
            ConfigurationError: as `load`, with `source` in the file's place.
        """
        experiment = _convert(settings, cls, source)
        _check_combination(settings, experiment, source)
        return experiment

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values that `from_dict` accepts; settings that are absent are left out."""
        settings: dict[str, Any] = msgspec.to_builtins(self)
        for section in ("stop", "search"):
            if settings[section] is not None:
                settings[section] = {key: value for key, value in settings[section].items() if value is not None}
        if self.algorithm.name == "a3c":
            settings["algorithm"] = {key: value for key, value in settings["algorithm"].items() if key not in _PPO_ONLY}
        return {key: value for key, value in settings.items() if value is not None}

    def to_toml(self) -> str:
        """The experiment as a TOML document."""
        return tomli_w.dumps(self.to_dict())

    def with_settings(self, changes: dict[str, Any], source: str = "--set") -> Experiment:
        """A checked copy with single settings changed; keys are dotted, as `child.exchange`.

        Raises:
            ConfigurationError: no such key, or a value that it does not allow.
        """
        settings = self.to_dict()
        if changes.get("algorithm.name") == "a3c":
            settings["algorithm"] = {key: value for key, value in settings["algorithm"].items() if key not in _PPO_ONLY}
        for key, value in changes.items():
            *sections, last = key.split(".")
            where = settings
            for section in sections:
                where = where.setdefault(section, {})
                if not isinstance(where, dict):
                    raise ConfigurationError(f"{source}: {key}: {section!r} is no section")
            where[last] = value
        return type(self).from_dict(settings, source=source)


class Role(_Section, frozen=True):
    """A child machine's own settings: `child/child.toml`. Everything else comes from its parent."""

    parent: Annotated[str, _M(pattern=r"^wss?://[^\s/]+", extra={"expected": "ws://HOST:PORT or wss://HOST:PORT"})] = "ws://127.0.0.1:8765"
    """Where the parent listens: `ws://HOST:PORT`, or `wss://HOST:PORT` if it has a certificate."""
    name: Annotated[str, _M(max_length=64, pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?\Z", extra={"expected": _NAME})] = ""
    """What this child is called; empty means the machine's name, numbered if that is taken."""
    cores: Natural | Literal["auto", "experiment"] = "experiment"
    """Core processes; `"experiment"` takes what the experiment says, `"auto"` one for each CPU core, as far as memory allows."""
    state: str = ""
    """A directory for this child's own weights and optimizer state, so that it resumes after a restart; empty means none."""
    token_file: str = ""
    """A file with the token by which the parent knows this child; the environment variable GENKIDAMA_TOKEN goes before it."""
    ca_file: str = ""
    """PEM certificates of the authority that signed the parent's certificate; empty means those that this machine trusts."""

    @classmethod
    def load(cls, path: str | Path) -> Role:
        """Reads a child's TOML; errors as `Experiment.load`."""
        return cls.from_dict(read_toml(Path(path)), source=str(path))

    @classmethod
    def from_dict(cls, settings: dict[str, Any], source: str = "the child's settings") -> Role:
        """Checks plain values; errors as `Experiment.from_dict`."""
        role: Role = _convert(settings, cls, source)
        return role


_PPO_ONLY = ("epochs", "minibatch_size", "clip")


def read_toml(path: Path) -> dict[str, Any]:
    """The file's settings.

    Raises:
        ConfigurationError: it cannot be read or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigurationError(f"{path}: is a directory, expected a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise EnvironmentFailure(f"{path}: cannot be read: {error.strerror}") from None


def _check_combination(given: dict[str, Any], experiment: Experiment, source: str) -> None:
    """What no single field's type can say."""
    algorithm = experiment.algorithm
    if algorithm.name == "a3c":
        for key in _PPO_ONLY:
            if key in given.get("algorithm", {}):
                value = given["algorithm"][key]
                raise ConfigurationError(f"{source}: algorithm.{key} = {value!r}: only algorithm.name = 'ppo' has this setting")
    if algorithm.name == "ppo" and algorithm.minibatch_size > algorithm.batch_size:
        raise ConfigurationError(
            f"{source}: algorithm.minibatch_size = {algorithm.minibatch_size}: "
            f"at most algorithm.batch_size = {algorithm.batch_size} is allowed"
        )
    child = experiment.child
    if algorithm.vtrace and (algorithm.name == "ppo" or child.backend == "hogwild"):
        key, value = ("algorithm.name", "ppo") if algorithm.name == "ppo" else ("child.backend", "hogwild")
        raise ConfigurationError(f"{source}: algorithm.vtrace = True: is for a3c with the backend ga3c, but {key} = {value!r}")
    if algorithm.vtrace and algorithm.epsilon:
        raise ConfigurationError(f"{source}: algorithm.vtrace = True: knows the policy's own actions only; set algorithm.epsilon to 0")
    if experiment.environment.vectorized and experiment.environment.wrappers:
        name = experiment.environment.wrappers[0].name
        raise ConfigurationError(
            f"{source}: environment.wrappers: {name!r} cannot be put around a vectorized environment; "
            "take out environment.vectorized or the wrappers"
        )
    ga3c = experiment.ga3c
    for key in ("predictors", "trainers", "agents"):
        number, limit = getattr(ga3c, key), getattr(ga3c, f"max_{key}")
        if number != "auto" and number > limit and (ga3c.dynamic or key == "agents"):
            raise ConfigurationError(f"{source}: ga3c.{key} = {number}: at most ga3c.max_{key} = {limit} is allowed")
    if child.exchange == "free" and not child.exchange_seconds and not child.exchange_steps:
        raise ConfigurationError(
            f"{source}: child.exchange_seconds = 0: with exchange_steps = 0 too, a free child would never exchange; set one of them"
        )
    if not experiment.parent.checkpoint_updates and not experiment.parent.checkpoint_seconds:
        raise ConfigurationError(
            f"{source}: parent.checkpoint_seconds = 0: with checkpoint_updates = 0 too, nothing would be saved on the way; set one of them"
        )

    if experiment.search is not None:
        _check_search(experiment, experiment.search, source)


#: What a trial cannot have its own value of: it belongs to the run, or to all trials.
_NOT_SEARCHABLE = ("name", "solved", "parent", "stop", "search")


def _check_search(experiment: Experiment, search: SearchSettings, source: str) -> None:
    lengths = {key: value for key in ("phase_steps", "phase_episodes", "phase_seconds") if (value := getattr(search, key)) is not None}
    if len(lengths) != 1:
        given = ", ".join(f"search.{key} = {value!r}" for key, value in lengths.items()) or "search.phase_steps is absent"
        raise ConfigurationError(f"{source}: {given}: give exactly one of phase_steps, phase_episodes and phase_seconds")
    stop = {key: value for key in ("updates", "episodes", "seconds", "mean_return") if (value := getattr(experiment.stop, key)) is not None}
    for key, value in stop.items():
        raise ConfigurationError(
            f"{source}: stop.{key} = {value!r}: a search ends after search.trials or search.seconds; take this setting out"
        )
    plain = msgspec.structs.replace(experiment, search=None)
    prefix = f"{source}: search.space"
    space = parse_space(search.space, prefix)
    for key, dimension in space.items():
        if key.partition(".")[0] in _NOT_SEARCHABLE:
            raise ConfigurationError(f"{prefix}: {key}: belongs to the whole run and cannot differ between trials")
        for value in dimension.extremes:
            try:
                plain.with_settings({key: value}, source=prefix)
            except ConfigurationError as error:
                problem = str(error).removeprefix(prefix)
                if not any(
                    f" {other} = " in problem for other in space if other != key
                ):  # otherwise that dimension's value may make it fit
                    raise


_Settings = TypeVar("_Settings", bound=_Section)


def _convert(settings: dict[str, Any], kind: type[_Settings], source: str) -> _Settings:
    try:
        return msgspec.convert(settings, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(_explain(settings, kind, source, str(error))) from None


def _explain(settings: dict[str, Any], kind: type[Any], source: str, error: str) -> str:
    """msgspec's words, with the key as a user writes it, the value found there and the known keys."""
    problem, _, place = error.partition(" - at `")
    keys = re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", place)
    value: Any = settings
    owner: Any = kind
    path = ""
    for name, position in keys:
        path += f".{name}" if name else f"[{position}]"
        try:
            value = value[name] if name else value[int(position)]
        except (KeyError, IndexError, TypeError, ValueError):
            value = None
        owner = _sections(owner).get(name) if name else None
    path = path.lstrip(".")
    unknown = re.match(r"Object contains unknown field `(.*)`", problem, re.DOTALL)
    if unknown:
        known = sorted(field.encode_name for field in msgspec.structs.fields(owner or kind))
        name = unknown[1] if unknown[1].isprintable() else ascii(unknown[1])  # TOML allows a line break in a quoted key
        full = f"{path}.{name}" if path else name
        near = difflib.get_close_matches(unknown[1], known, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        found = value.get(unknown[1]) if isinstance(value, dict) else None
        return f"{source}: {full} = {found!r}: no such setting; {hint}known here: {', '.join(known)}"
    return f"{source}: {path or 'top level'} = {value!r}: {_allowed(problem, kind, keys)}"


def _sections(kind: Any) -> dict[str, Any]:
    if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
        return {}
    return {field.encode_name: _section_of(field.type) for field in msgspec.structs.fields(kind)}


def _section_of(kind: Any) -> Any:
    """A section that may be absent, as the section itself."""
    return next((part for part in _parts(kind) if isinstance(part, type) and issubclass(part, msgspec.Struct)), kind)


def _allowed(problem: str, kind: Any, keys: list[tuple[str, str]]) -> str:
    """`Invalid enum value` and a regex say too little; the field's own type says which words are allowed."""
    owner = kind
    for name, _ in keys:
        owner = _sections(owner).get(name, owner) if name else owner
    parts = _parts(owner)
    if problem.startswith(("Invalid enum value", "Expected `str` matching regex", "Expected `int | str`")):
        for part in parts:
            if typing.get_origin(part) is Literal:
                number = ", or int >= 1" if Natural in parts else ""
                return f"expected one of {', '.join(map(repr, typing.get_args(part)))}{number}"
            for meta in getattr(part, "__metadata__", ()):
                if meta.extra:
                    return f"expected {meta.extra['expected']}"
    problem = problem.replace("`object`", "a table").replace(" | null", "").replace("`", "")
    return problem[0].lower() + problem[1:]


def _parts(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
