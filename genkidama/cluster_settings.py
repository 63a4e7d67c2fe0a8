"""The sections of an experiment about its machines: parent, child, GA3C. Pure.

The text below each field is its documentation, and its comment in `parent/parent.toml`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from genkidama.decoding import Count, Fraction, Meta, Natural, NotNegative, Positive, Section, plug

__all__ = ["ChildSettings", "GA3CSettings", "ParentSettings"]


class ParentSettings(Section, frozen=True):
    """`[parent]`: the machine that holds the weights."""

    alpha: Fraction = 0.5
    """How far the parent moves towards each push: θ_P ← (1−α)θ_P + αθ_C."""
    rule: Annotated[str, plug("blend", "weighted", "difference", "gradient", "experience")] = (
        "blend"
    )
    """How the parent uses a push: `"blend"`, as above; `"weighted"`, a blend in which not all
    pushes count the same; `"difference"`: θ_P ← θ_P + α(θ_C − θ_base); `"gradient"`: children send
    gradients, and `[optimizer]` is the parent's; `"experience"`: children only act, and one learner
    beside the parent learns from all; or `"module:Class"`, a `genkidama.averaging.Rule`.
    docs/rules.md says when to use which."""
    rule_options: dict[str, Any] = {}
    """Keyword arguments for the rule; docs/rules.md lists those of ours. A rule of one's own gets
    `alpha` too."""
    average: Fraction = 0.0
    """Checkpoints hold a running mean of θ_P, for evaluation and export, with this decay an
    exchange: 1 is the mean of all versions, 0 means θ_P itself. Training goes on from θ_P."""
    encoding: Literal["float32", "float16", "int8", "int4"] = "float32"
    """How weights travel: `"float32"`, whole and exact. Or as differences that leave their rest
    for the next exchange: `"float16"` takes half the bytes, `"int8"` a quarter, `"int4"` a
    ninth. A search is always exact."""
    push_limit: NotNegative = 0.0
    """Leave out a push that moves the weights so many times as far as pushes usually do; 0 means no
    limit. docs/security.md says what this and the next four are for, and what they cost."""
    push_window: Count = 0
    """Take, rather than each push alone, the trimmed mean of the newest pushes of so many children;
    0 means each push alone."""
    push_trim: Annotated[float, Meta(ge=0.0, le=0.5)] = 0.5
    """`push_window`: the share of the largest numbers, and of the smallest, that is left out; 0.5
    is the median."""
    quarantine_after: Count = 0
    """Leave out all that a child pushes for a while when so many of its pushes, out of twice as
    many, were too far or refused; 0 means never."""
    quarantine_seconds: NotNegative = 600.0
    """How long that while is."""
    listen: Annotated[str, Meta(min_length=1)] = "127.0.0.1:8765"
    """`HOST:PORT`; `0.0.0.0:8765` lets other machines in, which takes tokens and TLS."""
    open: bool = False
    """Other machines may come without tokens and TLS: whoever reaches the address may join, and
    what is said may be read and changed on its way."""
    checkpoint_updates: Count = 0
    """Checkpoint every so many updates; 0 means by time only."""
    checkpoint_seconds: NotNegative = 30.0
    """Checkpoint every so many seconds; 0 means by updates only."""
    checkpoint_keep: Natural = 5
    """How many of the last checkpoints to keep, beside the best."""
    history_every: Natural = 1
    """Write every n-th exchange to the history."""
    silence_seconds: Positive = 120.0
    """Close a connection that has said nothing for so long, and has answered no ping."""
    max_children: Natural = 1024
    """How many children may be connected at once."""
    max_per_address: Natural = 512
    """How many connections one address may have at once; of IPv6, a network of 64 bits."""
    max_pushes_per_second: Positive = 50_000.0
    """How many messages of one child are read in a second; one that sends more has to wait."""
    max_bytes_per_second: Positive = 1e9
    """How many bytes of one child are read in a second; one that sends more has to wait."""
    linger_seconds: NotNegative = 60.0
    """When the run is over, stay so long for the children that were cut off, to tell them."""
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
    """Which children may join: a file of lines that `genkidama token` makes, or of lines
    `NAME TOKEN`, with `*` for any name. It is read at every handshake; empty lets everybody in."""
    certificate_file: str = ""
    """PEM certificate, and the certificates between it and its authority; with `key_file` the
    parent speaks `wss://`."""
    key_file: str = ""
    """PEM private key of that certificate."""


class ChildSettings(Section, frozen=True):
    """`[child]`: what every child does."""

    beta: Fraction = 0.5
    """How far a child moves towards the parent's answer: θ_C ← (1−β)θ_C + βθ_P. Where it does not
    push weights, it takes θ_P over whole."""
    push: Literal["auto", "weights", "difference", "gradient", "experience"] = "auto"
    """What a child pushes; `"auto"` means what `parent.rule` takes, and nothing else fits it."""
    backend: Annotated[str, plug("hogwild", "ga3c")] = "hogwild"
    """`"hogwild"` (each core acts and learns), `"ga3c"` (many agents, one model), or
    `"module:Class"`."""
    exchange: Literal["episode", "update", "free"] = "episode"
    """`"episode"`: once per episode of the whole child, its cores waiting; `"update"`: so once per
    update, or per gradient if these are pushed; `"free"`: nobody waits."""
    exchange_seconds: NotNegative = 1.0
    """`free`: exchange every so many seconds; 0 means by steps only."""
    exchange_steps: Count = 0
    """`free`: exchange every so many steps of a child of mean speed, and all children equally
    often, since the parent tells each its own number; 0 means by seconds only."""
    roles: Annotated[tuple[Literal["bundle", "act", "learn"], ...], Meta(min_length=1)] = (
        "bundle",
    )
    """What children do with a replay for all of them: `"act"`, `"learn"`, or both, `"bundle"`. With
    several, children are shared out in this ratio: `["act", "act", "learn"]` is 2 : 1."""
    cores: Natural | Literal["auto"] = "auto"
    """Core processes of a child; `"auto"` means one for each CPU core that it may use, as many
    as fit into its memory."""
    hang_seconds: NotNegative = 30.0
    """A core that does nothing for so long, and for four times as long as any of them ever did,
    hangs, and another takes its place; 0 means that none ever does. So it is with a learner beside
    the parent."""


class GA3CSettings(Section, frozen=True):
    """`[ga3c]`: the backend `"ga3c"`, in which many agents share one model.

    `algorithm.batch_size` is its t_max.
    """

    device: Annotated[
        str,
        Meta(
            pattern=r"^(auto|cpu|cuda(:\d+)?)\Z",
            extra={"expected": "'auto', 'cpu', 'cuda' or 'cuda:N'"},
        ),
    ] = "auto"
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
    """Steps of an update, at least: rollouts of several agents are grouped until there are so
    many steps; 0 means one rollout."""
    rollouts: Annotated[int, Meta(ge=2)] = 3
    """Rollouts of an environment in memory. The agent fills one, and the others wait for a
    trainer; when all are full, the agent waits."""
    dynamic: bool = True
    """Whether N_P, N_T and N_A adjust themselves to give the most training batches a second."""
    window_seconds: Positive = 20.0
    """`dynamic`: how long each setting is measured."""
    max_predictors: Natural = 4
    """`dynamic`: the largest N_P."""
    max_trainers: Natural = 4
    """`dynamic`: the largest N_T."""
    max_agents: Natural = 64
    """The largest N_A."""
