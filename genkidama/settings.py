"""The sections of an experiment about what is learned, and how: every setting with its type, its
range and its default. Pure.

The text below each field is its documentation, and its comment in `parent/parent.toml`. The
sections' names are public and stay.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from genkidama.decoding import (
    NAME,
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
from genkidama.permission import ENVIRONMENT, ENVPOOL, IMPORT

__all__ = [
    "Algorithm",
    "Environment",
    "Network",
    "Optimizer",
    "ReplaySettings",
    "Stop",
    "Wrapper",
]


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
    """Whether to take its own vectorized form (ALE has one). That does the preprocessing:
    `options` are for it, and there are no `wrappers`."""
    lanes: Annotated[int, Meta(ge=1, le=1024)] = 1
    """`hogwild`: environments that each core plays at once; its batch is shared out among them.
    1 is the documented form."""
    normalize_observations: bool = False
    """Subtract the running mean of the observations and divide by their standard deviation."""
    normalize_rewards: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    reward_scale: Positive = 1.0
    """Factor of every reward that is learned from; reported returns do not have it."""
    clip_rewards: NotNegative = 0.0
    """Scaled rewards that are learned from are cut to ± this; 0 means no limit."""

    @property
    def envpool(self) -> str | None:
        """EnvPool's id of the environment, None if it is not one of EnvPool's."""
        name = self.id.removeprefix(ENVPOOL)
        return None if name == self.id else name


class Network(Section, frozen=True):
    """`[network]`: what acts and values."""

    name: Annotated[str, plug("actor-critic", "convolutional")] = "actor-critic"
    """`"actor-critic"` (for vectors), `"convolutional"` (for images), or `"module:Class"`, a
    subclass of `Network`."""
    convolutions: Annotated[tuple[tuple[Natural, Natural, Natural], ...], Meta(min_length=1)] = (
        (16, 8, 4),
        (32, 4, 2),
    )
    """`convolutional`: channels, kernel and stride of each convolution."""
    channels: Literal["first", "last"] = "first"
    """`convolutional`: where the axis of channels stands in the environment's images."""
    hidden: Annotated[tuple[Natural, ...], Meta(min_length=1)] = (128,)
    """Width of each hidden layer."""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """Activation function between layers."""
    shared: bool = False
    """Whether policy and value share their hidden layers."""
    initialization: Literal["orthogonal", "normal", "uniform"] = "orthogonal"
    """`"orthogonal"` (gain √2, policy head 0.01, value head 1), `"normal"`; biases 0. Or
    `"uniform"`, all within ±1/√inputs."""
    initial_deviation: Positive = 0.1
    """Standard deviation of the weights with `"normal"`."""
    options: dict[str, Any] = {}
    """Keyword arguments for a network of one's own."""


class Algorithm(Section, frozen=True):
    """`[algorithm]`: how a core learns from its steps."""

    name: Annotated[str, plug("a3c", "ppo", "dqn", "vtrace")] = "ppo"
    """`"a3c"`, `"ppo"`; `"dqn"` or `"vtrace"`, which learn from samples of `[replay]`; or
    `"module:Class"`."""
    gamma: Fraction = 0.99
    """Discount factor γ of a step."""
    gae_lambda: Fraction = 1.0
    """λ of generalized advantage estimation; 1 gives n-step returns."""
    batch_size: Natural = 120
    """Steps that a core collects before it learns from them."""
    across_episodes: bool = True
    """Whether a batch goes on past an episode's end; false learns at every episode's end, as
    documented for A3C."""
    pull_steps: Count = 0
    """A core takes the child's weights every so many steps; 0 means after each of its own
    updates."""
    epsilon: Fraction = 0.0
    """Probability of a uniformly random action at the start."""
    epsilon_schedule: Literal["constant", "linear"] = "constant"
    """How it goes from `epsilon` to `final_epsilon` as the run progresses."""
    final_epsilon: Fraction = 0.0
    """That probability at the end, with a schedule."""
    epsilon_fraction: Share = 1.0
    """The share of the run after which that is reached and stays."""
    epsilon_spread: NotNegative = 0.0
    """Core i of a child's C takes ε^(1 + this·i/(C−1)), each its own; 0 means ε for all."""
    value_coefficient: NotNegative = 0.5
    """Weight of the value loss."""
    entropy_coefficient: NotNegative = 0.0
    """Weight of the policy's entropy at the start."""
    entropy_schedule: Literal["constant", "linear"] = "constant"
    """How the weight goes from `entropy_coefficient` to `final_entropy_coefficient` as the run
    progresses."""
    final_entropy_coefficient: NotNegative = 0.0
    """Weight of the policy's entropy at the end, with a schedule."""
    entropy_fraction: Share = 1.0
    """The share of the run after which that weight is reached and stays."""
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
    """`ppo`, `dqn`, `vtrace`: steps of each update."""
    clip: Positive = 0.2
    """`ppo`: how far the probability ratio may move from 1."""
    start_steps: Count = 1000
    """`dqn`, `vtrace`: nothing is learned before the child remembers so many steps."""
    batch_updates: Natural = 1
    """`dqn`, `vtrace`: updates from samples, after each batch of new steps."""
    n_steps: Natural = 1
    """`dqn`: steps whose rewards are summed up before a value stands in for the rest. `vtrace`:
    the longest trajectory."""
    double: bool = True
    """`dqn`: whether θ chooses the action that θ⁻ values."""
    dueling: bool = False
    """`dqn`: whether Q is V and advantages, the network's two outputs, instead of one of them."""
    huber: NotNegative = 1.0
    """`dqn`: errors above this count linearly; 0 means all squared."""
    target_updates: Count = 500
    """`dqn`: θ⁻ ← θ after so many updates of the child; 0 means by versions alone."""
    target_versions: Count = 0
    """`dqn`: θ⁻ ← θ after so many versions of the parent; 0 means by updates alone."""
    options: dict[str, Any] = {}
    """Keyword arguments for an algorithm of one's own."""


class ReplaySettings(Section, frozen=True):
    """`[replay]`: what the cores of a child remember, for algorithms that learn from samples."""

    steps: Count = 0
    """Steps that each core keeps, at least a batch; 0 means its newest batch alone. Where `url` is
    not `"local"`, steps that are kept in all."""
    priority_exponent: Fraction = 0.0
    """`dqn`: α, how much more often steps with large errors are drawn: by |δ|^α; 0 means all
    alike."""
    correction: Fraction = 0.4
    """With priorities: β, how far their effect on the loss is taken back at the start of the run;
    at its end it is 1."""
    url: Annotated[
        str,
        Meta(
            pattern=r"^(local|embedded|rediss?://([^@/\s]*@)?"
            r"([^:@/\s]+|\[[^\]\s]+\])?(:\d{1,5})?(/\d*)?)\Z",
            extra={"expected": "'local', 'embedded' or 'redis://[:PASSWORD@]HOST[:PORT]'"},
        ),
    ] = "local"
    """Where they are kept: `"local"`, in each child's memory; or once for all children, by Valkey
    or Redis: `"embedded"`, which the parent starts, or `"redis://:PASSWORD@HOST:PORT"`,
    `"rediss://…"` with TLS, one of your own."""
    name: Annotated[
        str,
        Meta(max_length=64, pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?\Z", extra={"expected": NAME}),
    ] = ""
    """What this replay is called there; empty means as the run."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """`embedded`: where the children reach it on the parent's machine; 0 means any free port."""


class Optimizer(Section, frozen=True):
    """`[optimizer]`: how a gradient becomes a step on the child's shared vector."""

    name: Literal["sgd", "rmsprop", "adagrad", "adam"] = "adam"
    """The update rule."""
    learning_rate: Positive = 3e-4
    """Step size at the start."""
    schedule: Literal["constant", "linear"] = "constant"
    """How the learning rate goes from `learning_rate` to `final_learning_rate` as the run
    progresses."""
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
    """Whether the cores of a child share the optimizer's state; false gives each core its own."""


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
    """How many episodes that mean covers."""
