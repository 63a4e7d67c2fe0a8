"""The sections of an experiment: each setting with its type, its range and its default. Pure.

The text below each field is its documentation, and its comment in `parent/parent.toml`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from genkidama.config.allowlist import ENVIRONMENT, IMPORT, prefix_of
from genkidama.config.decoding import (
    Count,
    Finite,
    Fraction,
    Meta,
    Natural,
    NotNegative,
    Positive,
    Section,
    plug,
)
from genkidama.errors import ConfigurationError

#: The content of a push: θ_C, θ_C − θ_base, a gradient at θ_base, rows of steps, or no vector.
Kind: TypeAlias = Literal["weights", "difference", "gradient", "experience", "work"]

#: `child.exchange = "chunk"`: a batch is this many chunks, of which one is new in each exchange.
CHUNKS = 4

#: Settings that `child.adapt` may name, by section.
ADAPTED = {
    "alpha": "parent",
    "lanes": "environment",
    "minibatch_size": "algorithm",
    "learning_rate": "optimizer",
}

#: A part of a whole that is not nothing.
Share = Annotated[float, Meta(gt=0.0, le=1.0)]


class Wrapper(Section, frozen=True):
    """One of `environment.wrappers`."""

    name: Annotated[
        str,
        Meta(
            pattern=rf"^(\w+|{IMPORT})\Z",
            extra={"expected": "a wrapper of Gymnasium's or 'module:Class'"},
        ),
    ]
    """A class of `gymnasium.wrappers`, as `"FrameStackObservation"`, or `"module:Class"`."""
    options: dict[str, Any] = {}
    """Its keyword arguments."""


class Environment(Section, frozen=True):
    """`[environment]`: what is learned."""

    id: Annotated[
        str,
        Meta(
            pattern=rf"^{ENVIRONMENT}\Z",
            extra={"expected": "an id of Gymnasium's or EnvPool's, or 'module:Name'"},
        ),
    ] = "LunarLander-v3"
    """A Gymnasium id, also `"module:Name-v0"`, one of EnvPool's as `"envpool:LunarLander-v3"`, or
    `"module:callable"` that returns an environment."""
    options: dict[str, Any] = {}
    """Keyword arguments for the environment."""
    wrappers: tuple[Wrapper, ...] = ()
    """Wrappers around it, the innermost first, as `{ name = "FrameStackObservation", options =
    { stack_size = 4 } }`."""
    vectorized: bool = False
    """Use the environment's own vectorized form (ALE has one). That does the preprocessing:
    `options` are for it, and there are no `wrappers`."""
    action_mask: Literal["key", "info"] = "key"
    """Place of the mask of valid discrete actions: `"key"`, the key `action_mask` of a Dict of
    observations, if it has one; or `"info"`, `info["action_mask"]`."""
    exclusive: bool = False
    """Whether a machine can have only one of it open at a time, as a device or a fixed port: one
    child with one core plays it, and each is closed before the next is built."""
    period: NotNegative = 0.0
    """Seconds of a step of an environment that cannot be paused, as 0.02 of a robot with 50 Hz; 0
    means that it waits for its actions."""
    safe_action: tuple[float, ...] = ()
    """`period`: the action, as a list of its numbers, while the policy's is late, or its parent
    silent; empty means that there is none."""
    safe_seconds: NotNegative = 0.0
    """`safe_action`: the oldest observation that the policy may act on; 0 means any."""
    offline_seconds: NotNegative = 0.0
    """`safe_action`, `parent.rule = "experience"`: the longest time without an answer of the
    parent, so with old weights; 0 means any."""
    lanes: Annotated[int, Meta(ge=1, le=1024)] = 1
    """`hogwild`: environments that each core plays at once; its batch is divided among them.
    1 is the thesis' form."""
    normalize_observations: bool = False
    """Subtract the running mean of the observations and divide by their standard deviation."""
    normalize_rewards: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    reward_scale: Positive = 1.0
    """Factor of every reward that is learned from; reported returns do not have it."""
    clip_rewards: NotNegative = 0.0
    """Scaled rewards that are learned from are cut to ± this; 0 means no limit."""

    @property
    def prefix(self) -> str:
        """The prefix of `id` if a plug-in makes this environment, as `"envpool"`; else empty."""
        return prefix_of(self.id)

    @property
    def plain_id(self) -> str:
        """`id` without a plug-in's prefix."""
        return self.id.removeprefix(f"{self.prefix}:")

    @property
    def is_device(self) -> bool:
        """True if a machine can have one of it at a time, or it has a clock."""
        return self.exclusive or self.period > 0.0


class Network(Section, frozen=True):
    """`[network]`: what acts and values."""

    name: Annotated[str, plug("actor-critic", "convolutional")] = "actor-critic"
    """`"actor-critic"` (for numbers of any shape), `"convolutional"` (for images), or
    `"module:Class"`, a subclass of `Network`. Images of bytes, as a `Box` of uint8 with three axes,
    get `"convolutional"` in place of `"actor-critic"`."""
    convolutions: tuple[tuple[Natural, Natural, Natural], ...] = ()
    """`convolutional`: channels, kernel and stride of each convolution; empty means `[[16, 8, 4],
    [32, 4, 2]]`, or `[[16, 3, 1]]` for images of less than 36 pixels."""
    channels: Literal["auto", "first", "last"] = "auto"
    """`convolutional`: position of the axis of channels in the environment's images; `"auto"` means
    the last one if it is the smallest, else the first."""
    hidden: Annotated[tuple[Natural, ...], Meta(min_length=1)] = (128,)
    """Width of each hidden layer."""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """Activation function between layers."""
    shared: bool = False
    """Share the hidden layers between policy and value."""
    memory: Annotated[int, Meta(ge=0, le=4096)] = 0
    """Units of a GRU between the hidden layers, which are shared then, and the outputs: for what
    cannot be seen at once (docs/notes/memory.md). 0 means none."""
    sequence_length: Natural = 64
    """`memory`: steps through which a gradient goes back, at most."""
    initialization: Literal["orthogonal", "normal", "uniform"] = "orthogonal"
    """`"orthogonal"` (gain √2, policy head 0.01, value head 1), `"normal"`; biases 0. Or
    `"uniform"`, all within ±1/√inputs."""
    initial_deviation: Positive = 0.1
    """Standard deviation of the weights with `"normal"`."""
    sde_steps: Count = 0
    """Box actions: state-dependent exploration (gSDE), whose noise follows the state smoothly and
    is drawn anew after this many steps; 0 means noise of its own at each step."""
    log_deviation: Annotated[float, Meta(ge=-20.0, le=20.0)] | Literal["auto"] = "auto"
    """Box actions: the logarithm of the noise's standard deviation at the start; `"auto"` means 0,
    or −2 with `sde_steps`, where each hidden unit adds noise."""
    options: dict[str, Any] = {}
    """Keyword arguments for a custom network."""


class Algorithm(Section, frozen=True):
    """`[algorithm]`: how a core learns from its steps."""

    name: Annotated[str, plug("a3c", "ppo", "dqn", "vtrace", "sac", more=True)] = "ppo"
    """`"a3c"`, `"ppo"`; `"dqn"`, `"vtrace"` or `"sac"`, which learn from samples of `[replay]`; or
    `"module:Class"`."""
    gamma: Fraction = 0.99
    """Discount factor γ of a step."""
    gae_lambda: Fraction = 1.0
    """λ of generalized advantage estimation; 1 gives n-step returns."""
    batch_size: Natural = 120
    """Steps that a core collects before it learns from them."""
    across_episodes: bool = True
    """Let a batch continue past an episode's end; false learns at every episode's end, as
    documented for A3C."""
    pull_steps: Count = 0
    """Steps after which a core takes the child's weights again; 0 means after each of its
    updates."""
    epsilon: Fraction = 0.0
    """Probability of a uniformly random action at the start."""
    epsilon_schedule: Literal["constant", "linear"] = "constant"
    """Course from `epsilon` to `final_epsilon` over the run."""
    final_epsilon: Fraction = 0.0
    """That probability at the end, with a schedule."""
    epsilon_fraction: Share = 1.0
    """The share of the run after which that is reached and stays."""
    epsilon_versions: Count = 0
    """The parent's versions after which it is, instead; 0 means by the share."""
    epsilon_spread: NotNegative = 0.0
    """Core i of a child's C cores uses ε^(1 + this·i/(C−1)); 0 means ε for all."""
    value_coefficient: NotNegative = 0.5
    """Weight of the value loss."""
    entropy_coefficient: NotNegative = 0.0
    """Weight of the policy's entropy at the start."""
    entropy_schedule: Literal["constant", "linear"] = "constant"
    """Course of the weight from `entropy_coefficient` to `final_entropy_coefficient` over the
    run."""
    final_entropy_coefficient: NotNegative = 0.0
    """Weight of the policy's entropy at the end, with a schedule."""
    entropy_fraction: Share = 1.0
    """The share of the run after which that weight is reached and stays."""
    reduction: Literal["mean", "sum"] = "mean"
    """Take the mean or the sum of a loss over its steps."""
    normalize_advantages: bool = False
    """Bring each batch's advantages to mean 0 and standard deviation 1."""
    max_gradient_norm: NotNegative = 0.0
    """Longest gradient, by its Euclidean norm; 0 means no limit."""
    outlier_sigmas: NotNegative = 0.0
    """Each core leaves a gradient out whose absolute loss is this many standard deviations above
    the running mean of its own; 0 means no limit."""
    vtrace: bool = False
    """`a3c` with `ga3c` or `"chunk"`: corrects by V-trace for the updates between acting and
    learning."""
    vtrace_rho: Positive = 1.0
    """`vtrace`: ρ̄, the largest weight of a step's temporal difference."""
    vtrace_c: Positive = 1.0
    """`vtrace`: c̄, the largest weight with which a difference reaches back a step."""
    epochs: Natural = 4
    """`ppo`: passes over a batch."""
    minibatch_size: Natural = 64
    """`ppo`, `dqn`, `vtrace`, `sac`: steps of each update."""
    clip: Positive = 0.2
    """`ppo`: largest distance of the probability ratio from 1."""
    start_steps: Count = 1000
    """`dqn`, `vtrace`, `sac`: steps in the replay before anything is learned."""
    batch_updates: Natural = 1
    """`dqn`, `vtrace`: updates from samples, after each batch of new steps."""
    n_steps: Natural = 1
    """`dqn`: steps whose rewards are summed up before a value replaces the rest. `vtrace`:
    the longest trajectory."""
    burn_in: Count = 0
    """`vtrace` with `network.memory`: steps of the replay in front of these that are only unrolled,
    to bring the state that is stored with them up to date."""
    double: bool = True
    """`dqn`: whether θ chooses the action that θ⁻ values."""
    dueling: bool = False
    """`dqn`: whether Q is V and advantages, the network's two outputs, instead of one of them."""
    huber: NotNegative = 1.0
    """`dqn`: errors above this count linearly; 0 means all squared."""
    target_updates: Count = 500
    """`dqn`: θ⁻ ← θ after this number of the child's updates; 0 means by versions alone."""
    target_versions: Count = 0
    """`dqn`: θ⁻ ← θ after this number of the parent's versions; 0 means by updates alone."""
    updates_per_step: Positive | Literal["auto"] = "auto"
    """`sac`: updates from samples for each new step, as far as there is time. `"auto"` means 1 in a
    child, and beside the parent 4, or 8 with `layer_norm`."""
    target_rate: Share = 0.02
    """`sac`: τ of the target critics: θ⁻ ← (1−τ)θ⁻ + τθ after each update."""
    layer_norm: bool = False
    """`sac`: normalize the hidden layers of the critics, which bears more updates a step."""
    critic_dropout: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    """`sac`: the share of the critics' hidden units that each update leaves out; 0.01 with
    `layer_norm` bears still more updates a step (DroQ)."""
    initial_value: Annotated[float, Meta(ge=-1e9, le=1e9)] = 0.0
    """`sac`: Q of all states and actions at first. With r for each step, whatever happens,
    r/(1 − `gamma`) is what a policy gets that never fails: then only failures are to be learned."""
    target_entropy: Finite | Literal["auto"] = "auto"
    """`sac`: H̄, the entropy that the policy should have, of actions scaled to ±1; `"auto"` means
    −1 for each number of an action."""
    demonstrations: tuple[str, ...] = ()
    """`dqn`, `sac`: files of steps that `play --record` has written, on each machine that
    learns; they are never evicted."""
    demonstration_share: Fraction = 0.5
    """`dqn`, `sac`: the share of each minibatch that is drawn from `demonstrations`."""
    options: dict[str, Any] = {}
    """Keyword arguments for a custom algorithm."""


class Optimizer(Section, frozen=True):
    """`[optimizer]`: how a gradient becomes a step on the child's shared vector."""

    name: Literal["sgd", "rmsprop", "adagrad", "adam"] = "adam"
    """The update rule."""
    learning_rate: Positive = 3e-4
    """Step size at the start."""
    schedule: Literal["constant", "linear"] = "constant"
    """Course from `learning_rate` to `final_learning_rate` over the run."""
    final_learning_rate: NotNegative = 0.0
    """Step size at the end, with a schedule."""
    schedule_fraction: Share = 1.0
    """The share of the run after which that step size is reached and stays."""
    momentum: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    """`sgd`: momentum."""
    weight_decay: NotNegative = 0.0
    """Added to the gradient: this times the weights."""
    decay: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.99
    """`rmsprop`: decay of the squared gradients."""
    betas: tuple[Annotated[float, Meta(ge=0.0, lt=1.0)], Annotated[float, Meta(ge=0.0, lt=1.0)]] = (
        0.9,
        0.999,
    )
    """`adam`: decay of the first and second moment."""
    epsilon: Positive = 1e-8
    """`rmsprop`, `adagrad`, `adam`: added to the denominator."""
    epsilon_inside: bool = False
    """`rmsprop`: whether `epsilon` is added under the root, as in Mnih et al. 2016 and
    TensorFlow, or to the root, as in torch."""
    shared: bool = True
    """Share the optimizer's state among the cores of a child; false gives each core its own."""


class Stop(Section, frozen=True):
    """`[stop]`: the run ends when the first of these limits is reached, and without any when the
    task counts as solved."""

    updates: Natural | None = None
    """Exchanges a child: each counts 1/n while n children take part, so the count never goes
    back."""
    episodes: Natural | None = None
    """Episodes of all children."""
    steps: Natural | None = None
    """Environment steps of all children."""
    seconds: Positive | None = None
    """Wall-clock time since the first child joined."""
    mean_return: Finite | None = None
    """Mean return of the last `window` training episodes of all children."""
    window: Natural = 100
    """Episodes of that mean."""


class ParentSettings(Section, frozen=True):
    """`[parent]`: the machine that holds the weights."""

    alpha: Fraction = 0.5
    """Step of the parent towards each push: θ_P ← (1−α)θ_P + αθ_C."""
    rule: Annotated[
        str, plug("blend", "weighted", "difference", "gradient", "experience", more=True)
    ] = "blend"
    """Use of a push by the parent: `"blend"`, as above; `"weighted"`, a blend in which not all
    pushes count the same; `"difference"`: θ_P ← θ_P + α(θ_C − θ_base); `"gradient"`: children send
    gradients, and `[optimizer]` is the parent's; `"experience"`: children only act, and one learner
    beside the parent learns from all; or `"module:Class"`, a `genkidama.Rule`. docs/notes/rules.md
    says when to use which."""
    rule_options: dict[str, Any] = {}
    """Keyword arguments for the rule; docs/notes/rules.md lists those of the named rules. A custom
    rule gets `alpha` too."""
    start: str = ""
    """Weights with which a new run begins: of a run's or a search's directory, a checkpoint, or a
    repository of the Hugging Face Hub. Each array is taken whose name and shape this network has,
    too. Empty begins with new weights."""
    average: Fraction = 0.0
    """Checkpoints hold a running mean of θ_P, for evaluation and export, with this decay an
    exchange: 1 is the mean of all versions, 0 means θ_P itself. Training continues from θ_P."""
    encoding: Literal["float32", "float16", "int8", "int4"] = "float32"
    """Form of weights on the wire: `"float32"`, whole and exact. Or differences, whose error is
    sent with the next exchange: `"float16"` takes half the bytes, `"int8"` a quarter, `"int4"` a
    ninth. A search is always exact."""
    push_limit: NotNegative = 0.0
    """Leave out a push that moves the weights farther than this multiple of the usual distance; 0
    means no limit. docs/security.md says what this and the next four are for, and what they
    cost."""
    push_window: Count = 0
    """Replace each push by the trimmed mean of the newest pushes of this number of children; 0
    means each push alone."""
    push_trim: Annotated[float, Meta(ge=0.0, le=0.5)] = 0.5
    """`push_window`: the share of the largest numbers, and of the smallest, that is left out; 0.5
    is the median."""
    quarantine_after: Count = 0
    """Ignore a child for a while when this number of its pushes, out of twice that number, were too
    far or refused; 0 means never."""
    quarantine_seconds: NotNegative = 600.0
    """Length of that while."""
    listen: Annotated[str, Meta(min_length=1)] = "127.0.0.1:8765"
    """`HOST:PORT`; `0.0.0.0:8765` admits other machines, which needs tokens and TLS."""
    open: bool = False
    """Let other machines in without tokens and TLS: whoever reaches the address may join, and
    messages may be read and changed on the way."""
    checkpoint_updates: Count = 0
    """Exchanges a child after which there is another checkpoint; 0 means by time only."""
    checkpoint_seconds: NotNegative = 30.0
    """Seconds after which there is another checkpoint; 0 means by exchanges only."""
    checkpoint_keep: Natural = 5
    """Newest checkpoints to keep, beside the best."""
    history_every: Natural = 1
    """Write every n-th exchange to the history. One takes some 400 bytes with its measures: 60
    exchanges a second fill 2 GB a day."""
    silence_seconds: Positive = 120.0
    """Close a connection after this time without a message or an answer to a ping, and later where
    a large vector may be on its way."""
    max_children: Natural = 1024
    """Most children that may be connected at once."""
    browsers: bool = False
    """Admit browsers as children, by links to `/join`; with the rule `"experience"` alone."""
    max_per_address: Natural = 512
    """Most connections that one address may have at once; of IPv6, a network of 64 bits."""
    max_pushes_per_second: Positive = 50_000.0
    """Most messages of one child that are read in a second; one that sends more has to wait."""
    max_bytes_per_second: Positive = 1e9
    """Most bytes of one child that are read in a second; one that sends more has to wait."""
    linger_seconds: NotNegative = 60.0
    """Stay for this time after the run's end, to tell the children that were cut off."""
    max_parameters: Natural = 100_000_000
    """The largest network that is accepted, in numbers; it bounds the size of a message."""
    signature: Annotated[
        str,
        Meta(
            pattern=r"^([0-9a-f]{64})?\Z",
            extra={"expected": "64 digits 0-9 a-f, as `genkidama signature` prints them"},
        ),
    ] = ""
    """The digest of the network that children must have, as `genkidama signature FILE.toml` prints
    it; empty takes the network of the first child. A search ignores it."""
    tokens_file: str = ""
    """File of the tokens with which children may join: lines that `genkidama token` makes, or lines
    `NAME TOKEN`, with `*` for any name. It is read at every handshake; empty lets everybody in."""
    certificate_file: str = ""
    """PEM certificate, and the certificates between it and its authority; with `key_file` the
    parent speaks `wss://`."""
    key_file: str = ""
    """PEM private key of that certificate."""


class ChildSettings(Section, frozen=True):
    """`[child]`: what every child does."""

    beta: Fraction = 0.5
    """Step of a child towards the parent's answer: θ_C ← (1−β)θ_C + βθ_P. A child that does not
    push weights takes θ_P over whole."""
    push: Literal["auto", "weights", "difference", "gradient", "experience"] = "auto"
    """Content of a child's pushes; `"auto"` means what `parent.rule` takes, and nothing else fits
    it."""
    backend: Annotated[str, plug("hogwild", "ga3c", more=True)] = "hogwild"
    """`"hogwild"` (each core acts and learns), `"ga3c"` (many agents, one model), or
    `"module:Class"`."""
    exchange: Literal["episode", "update", "free", "chunk"] = "episode"
    """`"episode"`: once per episode of the whole child, while its cores wait; `"update"`: the same
    once per update, or per gradient if the child pushes gradients; `"free"`: nobody waits;
    `"chunk"`: each core acts for a quarter of a batch, takes θ_P, learns from its newest batch,
    and pushes, for averaging that is faster with more children (docs/notes/scaling.md)."""
    adapt: (
        Literal["auto"] | tuple[Literal["alpha", "lanes", "minibatch_size", "learning_rate"], ...]
    ) = "auto"
    """`chunk`: settings that follow the number of children: `parent.alpha`, `environment.lanes`,
    `algorithm.minibatch_size` and `optimizer.learning_rate`. `"auto"` means those of them that the
    experiment does not set."""
    exchange_seconds: NotNegative = 1.0
    """`free`: seconds from one exchange to the next; 0 means by steps only."""
    exchange_steps: Count = 0
    """`free`: steps between two exchanges of a child of mean speed. The parent gives each child
    its number, so all exchange equally often. 0 means by seconds only."""
    roles: Annotated[tuple[Literal["bundle", "act", "learn"], ...], Meta(min_length=1)] = (
        "bundle",
    )
    """Roles of children with a replay for all of them: `"act"`, `"learn"`, or both, `"bundle"`.
    With several, children are assigned in this ratio: `["act", "act", "learn"]` is 2 : 1."""
    cores: Natural | Literal["auto"] = "auto"
    """Core processes of a child; `"auto"` means one for each CPU core that it may use, as many
    as fit into its memory."""
    hang_seconds: NotNegative = 30.0
    """A core without progress for this time, and for four times the longest pause of any core so
    far, is replaced; 0 means never. A learner beside the parent has twice as long."""


#: The beginnings of settings that change neither the network nor what a push means.
_OWN = (
    "environment.options.",
    "environment.lanes",
    "environment.period",
    "environment.safe_",
    "environment.offline_seconds",
    "algorithm.demonstrations",
    "child.backend",
    "child.hang_seconds",
    "ga3c.",
)


class ChildOverride(Section, frozen=True):
    """`[[children]]`: settings of some children only."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    """The children's name, also with `*`, `?` and `[abc]`, as `"gpu-*"`."""
    settings: dict[str, Any] = {}
    """Their settings, as a table or by dotted names: those that a child's own file may have."""

    @property
    def changes(self) -> dict[str, Any]:
        """`settings` by their dotted names, as `"environment.options.port"`."""
        return flat(self.settings)


def check_own(changes: dict[str, Any], source: str) -> None:
    """Checks that one child may have these settings, by their dotted names, for itself.

    Raises:
        ConfigurationError: one of them must be the same for all children.
    """
    for key, value in changes.items():
        if not key.startswith(_OWN):
            raise ConfigurationError(
                f"{source}: settings.{key} = {value!r}: is the same for all children; a child "
                "may have its own " + ", ".join(name.rstrip("._") for name in _OWN)
            )


def flat(table: dict[str, Any], before: str = "") -> dict[str, Any]:
    """A nested table by dotted names."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        within = isinstance(value, dict)
        found |= flat(value, f"{before}{key}.") if within else {before + key: value}
    return found
