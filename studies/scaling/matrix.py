"""What is measured: the tables that the command chooses from, and the order of the runs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from random import Random
from typing import Any

Row = dict[str, Any]

#: What every contender that learns with our code is told. The rate stays as it is at the start:
#: otherwise it would depend on the limit of time, and fall further for one machine than for eight.
_COMMON = {"optimizer.schedule": "constant", "child.cores": 1}


#: Every child learns by itself, with the settings of `lunarlander.toml`.
_LEARNS = {"parent.rule": "blend", "child.exchange": "free", "child.exchange_seconds": 0.5}

#: What `lunarlander.toml` was before children only acted in it.
_BLEND = {
    **_LEARNS,
    "environment.lanes": 1,
    "algorithm.minibatch_size": 128,
    "algorithm.entropy_coefficient": 0.0,
    "optimizer.learning_rate": 5e-4,
}

#: The rate falls with the steps of all machines, and so at the same step for any number of them.
_AVERAGE = {"optimizer.schedule": "linear", "stop.steps": 450_000}

#: The best settings that are known for one machine that learns by itself.
_ALONE = {
    **_AVERAGE,
    "environment.lanes": 8,
    "algorithm.batch_size": 1024,
    "algorithm.epochs": 4,
    "algorithm.minibatch_size": 64,
    "algorithm.normalize_advantages": True,
    "optimizer.learning_rate": 7e-4,
    "parent.rule": "blend",
    "parent.alpha": 1.0,
    "child.beta": 0.0,
    "child.exchange": "free",
    "child.exchange_seconds": 0.5,
}

_CUT_SECONDS = 20.0

#: How long children are alone, and how long a run goes on when they are back.
_ALONE_SECONDS, AFTER_SECONDS = 60.0, 45.0


@dataclass(frozen=True)
class Contender:
    """One way to learn with n machines."""

    #: Who runs it: `ours`, `ddp`, `flower` or `sb3`.
    kind: str
    #: The experiment below `examples/`, and its settings that differ.
    experiment: str = "lunarlander/lunarlander.toml"
    settings: Mapping[str, Any] | None = None
    #: Whether one machine has the shares of all n: no network, the upper bound.
    together: bool = False
    #: Whether the n machines share a batch and its minibatches, instead of one each.
    divided: bool = False
    #: How many batches a machine learns from in a round of Flower's.
    batches: int = 1
    #: How many machines are measured unless told otherwise.
    machines: tuple[int, ...] = (1, 2, 4, 8, 16)
    #: What people read in tables and pictures.
    title: str = ""

    #: Whether it learns any task, and not LunarLander alone.
    any_task: bool = False

    def overrides(self) -> dict[str, Any]:
        """The settings that differ from the experiment's file, by their dotted keys."""
        return {**_COMMON, **(self.settings or {})}


#: Variants of ours, then the peers. A new variant is one line.
CONTENDERS: dict[str, Contender] = {
    "experience": Contender("ours", title="Genkidama, children act, one learner", any_task=True),
    "alone": Contender(
        "ours",
        settings={**_LEARNS, "parent.alpha": 1.0, "child.beta": 0.0},
        machines=(1,),
        title="Genkidama, one machine that learns by itself",
    ),
    "average": Contender(
        "ours",
        "lunarlander/averaging.toml",
        _AVERAGE,
        title="Genkidama, averaging in chunks",
        any_task=True,
    ),
    "average-half": Contender(
        "ours",
        "lunarlander/averaging.toml",
        {**_AVERAGE, "parent.encoding": "float16"},
        machines=(8,),
        title="Genkidama, averaging in chunks, float16",
        any_task=True,
    ),
    "average-blend": Contender(
        "ours",
        "lunarlander/averaging.toml",
        {**_AVERAGE, "parent.rule": "blend"},
        machines=(8,),
        title="Genkidama, averaging in chunks by a blend",
    ),
    "alone-tuned": Contender(
        "ours",
        "lunarlander/averaging.toml",
        _ALONE,
        machines=(1,),
        title="Genkidama, one machine with its best settings",
    ),
    "blend": Contender("ours", settings=_BLEND, machines=(1, 8), title="Genkidama, blend"),
    "difference": Contender(
        "ours",
        settings={
            **_LEARNS,
            "parent.rule": "difference",
            "parent.alpha": 1.0,
            "parent.rule_options": {"children_power": -0.5},
        },
        machines=(8,),
        title="Genkidama, differences, α = 1/√n",
    ),
    "gradient": Contender(
        "ours",
        settings={"parent.rule": "gradient", "child.exchange": "update"},
        machines=(8,),
        title="Genkidama, gradients to one Adam",
    ),
    "whole": Contender(
        "ours",
        settings=_LEARNS,
        together=True,
        machines=(8,),
        title="Genkidama, one machine with all shares",
    ),
    "ddp": Contender(
        "ddp",
        settings=_LEARNS,
        divided=True,
        machines=(1, 8),
        title="torch.distributed, one batch for all",
    ),
    "ddp-each": Contender(
        "ddp", settings=_LEARNS, machines=(8,), title="torch.distributed, a batch each"
    ),
    "flower": Contender(
        "flower", settings=_LEARNS, machines=(8,), title="Flower, FedAvg, a batch a round"
    ),
    "flower-long": Contender(
        "flower",
        settings=_LEARNS,
        batches=16,
        machines=(1, 8),
        title="Flower, FedAvg, 16 batches a round",
    ),
    "sb3": Contender(
        "sb3", together=True, machines=(1, 8), title="Stable-Baselines3 PPO, one machine"
    ),
}


_GORILA = {
    "parent.rule": "gradient",
    "child.exchange": "update",
    "algorithm.target_updates": 0,
    "algorithm.target_versions": 40,
}

#: Those of `python -m studies.gorila`: bundles that act, remember and learn.
BUNDLES: dict[str, Contender] = {
    "gorila": Contender(
        "ours", "cartpole/dqn.toml", _GORILA, machines=(1, 2, 4, 8), title="Gorila"
    ),
    "gorila-discards": Contender(
        "ours",
        "cartpole/dqn.toml",
        {**_GORILA, "parent.rule_options": {"max_staleness": 24, "outlier_sigmas": 4.0}},
        machines=(8,),
        title="Gorila that discards",
    ),
    "synchronous": Contender(
        "ddp",
        "cartpole/dqn.toml",
        {"algorithm.target_updates": 40},
        machines=(1, 2, 4, 8),
        title="the same in step, torch.distributed",
    ),
}


def contender_of(name: str) -> Contender:
    """The contender of this name."""
    return CONTENDERS[name] if name in CONTENDERS else BUNDLES[name]


@dataclass(frozen=True)
class Task:
    """An environment to learn."""

    environment: str
    #: The mean return to reach.
    goal: float
    #: Training continues until its own mean is so far above the goal, since that mean looks back.
    margin: float
    #: Seconds of learning at most, unless told otherwise.
    limit: float
    #: Of returns, against LunarLander's.
    scale: float = 1.0
    #: Seconds between two snapshots, times the number of machines.
    every: float = 8.0
    #: Of a core, for each machine, unless told otherwise.
    share: float = 0.1
    #: What differs from `averaging.toml` for those that average, by dotted keys.
    average: Mapping[str, Any] = field(default_factory=dict)
    #: The experiment of `experience` below `examples/`, and what differs from it.
    experiment: str = ""
    experience: Mapping[str, Any] = field(default_factory=dict)
    #: Modules that a child may import for it.
    allow: tuple[str, ...] = ()


_BREAKOUT = {"algorithm.entropy_coefficient": 0.01, "algorithm.normalize_advantages": True}

_FIRST_TASK = "lunarlander"

TASKS: dict[str, Task] = {
    "lunarlander": Task("LunarLander-v3", goal=200.0, margin=30.0, limit=600.0),
    "cartpole": Task(
        "CartPole-v1",
        goal=475.0,
        margin=15.0,
        limit=180.0,
        average={
            "environment.reward_scale": 1.0,
            "algorithm.gamma": 0.98,
            "algorithm.gae_lambda": 0.9,
        },
        experiment="cartpole/cartpole.toml",
    ),
    "breakout": Task(
        "minatar.gym:BaseEnv",
        goal=5.0,
        margin=1.0,
        scale=0.035,
        every=24.0,
        limit=300.0,
        average={
            **_BREAKOUT,
            "environment.options": {"game": "breakout", "use_minimal_action_set": True},
            "environment.reward_scale": 1.0,
            "network.name": "convolutional",
            "network.channels": "last",
            "network.convolutions": [[16, 3, 2]],
            "network.hidden": [128],
            "network.activation": "relu",
            "algorithm.gamma": 0.99,
            "algorithm.gae_lambda": 0.95,
            "stop.steps": 5_000_000,
        },
        experiment="minatar/breakout.toml",
        experience={
            "parent.rule": "experience",
            "child.backend": "hogwild",
            "environment.lanes": 16,
            "algorithm.batch_size": 2048,
        },
        allow=("minatar",),
    ),
    "continuous": Task(
        "LunarLanderContinuous-v3",
        goal=200.0,
        margin=30.0,
        limit=600.0,
        experiment="lunarlander/continuous.toml",
    ),
}


@dataclass(frozen=True)
class Disturbance:
    """What goes wrong."""

    #: Machine 0 gets this part of its share.
    slow: float = 1.0
    #: Whether a random half of the machines is cut off once a minute, at a random moment.
    cuts: bool = False
    #: Whether the second half of the machines joins later.
    late: bool = False
    #: Whether the second half of the machines is cut off once for a minute. Then the run has no
    #: goal: it goes on for a while after that.
    alone: bool = False


DISTURBANCES: dict[str, Disturbance] = {
    "none": Disturbance(),
    "slow10": Disturbance(slow=0.1),
    "slow100": Disturbance(slow=0.01),
    "cuts": Disturbance(cuts=True),
    "late": Disturbance(late=True),
    "alone": Disturbance(alone=True),
}


@dataclass(frozen=True)
class Link:
    """The network between a machine and the parent."""

    #: Each way, in megabits a second.
    megabits: float
    #: Of a round trip, in milliseconds; half of it each way.
    delay_ms: float
    #: Of the packets, each way.
    loss: float = 0.0


#: None: all on the loopback.
LINKS: dict[str, Link | None] = {
    "none": None,
    "ethernet": Link(100.0, 1.0),
    "wifi": Link(20.0, 20.0, 0.01),
    "internet": Link(5.0, 80.0),
}


@dataclass(frozen=True)
class Condition:
    """What tells one run from every other: a row of the results is one of these, measured once."""

    contender: str
    machines: int
    seed: int
    disturbance: str = "none"
    link: str = "none"
    share: float = 0.1
    #: A key of `TASKS`; rows that do not say it are of this one.
    task: str = _FIRST_TASK

    @classmethod
    def of(cls, row: Row) -> Condition:
        """The condition under which a row was measured."""
        return cls(**{name: row[name] for name in cls.__dataclass_fields__ if name in row})

    def __str__(self) -> str:
        extra = [word for word in (self.disturbance, self.link) if word != "none"]
        if self.task != _FIRST_TASK:
            extra.append(self.task)
        machines = f"{self.machines} × {self.share:g} cores"
        return ", ".join([self.contender, machines, f"seed {self.seed}", *extra])

    def as_row(self) -> Row:
        """The part of a row that identifies it."""
        row = asdict(self)
        if self.task == _FIRST_TASK:
            del row["task"]
        return row


def settings_of(condition: Condition) -> tuple[str, dict[str, Any]]:
    """The experiment's file below `examples/`, and what differs from it by dotted keys."""
    contender, task = contender_of(condition.contender), TASKS[condition.task]
    settings = {**contender.overrides(), "seed": condition.seed}
    if condition.contender in BUNDLES:  # they begin to learn after as many steps of all together
        settings["algorithm.start_steps"] = 512 // condition.machines
    file = contender.experiment
    if condition.task != _FIRST_TASK:
        average = condition.contender != "experience"
        file = file if average else task.experiment
        settings |= task.average if average else task.experience
        settings["environment.id"] = task.environment
    if contender.together:
        settings["child.cores"] = math.ceil(condition.machines * condition.share)
    if DISTURBANCES[condition.disturbance].alone:
        settings["stop.window"] = 1_000_000  # the mean of all episodes tells the sum of each push
        if "stop.steps" in settings:
            settings["stop.steps"] *= 3  # nothing but the time ends it
    return file, settings


def shares(condition: Condition) -> list[float]:
    """The share of each control group, in cores: one a machine, or one for all together."""
    if contender_of(condition.contender).together:
        return [condition.share * condition.machines]
    slow = DISTURBANCES[condition.disturbance].slow
    return [condition.share * slow] + [condition.share] * (condition.machines - 1)


def problem(condition: Condition, cores: int) -> str | None:
    """Why this cannot be measured, in one line; None if it can.

    Args:
        condition: what is to be measured.
        cores: of this machine.
    """
    asked = condition.share * condition.machines
    name = f"{condition.contender}, {condition.machines} machines, {condition.disturbance}"
    if condition.task != _FIRST_TASK and not contender_of(condition.contender).any_task:
        able = " ".join(name for name, one in CONTENDERS.items() if one.any_task)
        return f"{condition.contender}: it learns {_FIRST_TASK} only; take --contenders {able}"
    if asked > 0.9 * cores:
        return (
            f"{name}: {condition.machines} × {condition.share:g} cores are {asked:g}, and this "
            f"machine has {cores}, a tenth of them for the parent; take a smaller --share or "
            "fewer --machines"
        )
    if min(shares(condition)) < 0.001:
        return f"{name}: a share below 0.001 cores; take a larger --share"
    disturbance = DISTURBANCES[condition.disturbance]
    if (disturbance.cuts or disturbance.alone) and LINKS[condition.link] is None:
        return f"{name}: the loopback cannot be cut; take --links ethernet"
    return None


def makes_sense(condition: Condition) -> bool:
    """Whether the row would say anything: what is not disturbed needs no second measurement."""
    contender = contender_of(condition.contender)
    disturbance = DISTURBANCES[condition.disturbance]
    if contender.machines == (1,) and condition.machines > 1:
        return False
    if contender.together:
        return condition.disturbance == "none" and condition.link == "none"
    if contender.kind != "ours" and (disturbance.cuts or disturbance.late or disturbance.alone):
        return False  # a group of torch.distributed's is fixed, and Flower waits for its minimum
    return condition.disturbance == "none" or condition.machines > 1


def plan(
    contenders: Sequence[str],
    machines: Iterable[int] | None,
    seeds: Iterable[int],
    disturbances: Iterable[str] = ("none",),
    links: Iterable[str] = ("none",),
    share: float | None = None,
    tasks: Iterable[str] = (_FIRST_TASK,),
) -> list[Condition]:
    """All runs, in their order: every seed goes round all conditions before the next one.

    Within a seed many and few machines take turns (16, 1, 8, 2, 4), and every second seed goes
    backwards, so that a machine that grows slower with the hours favours nobody.

    Args:
        contenders: keys of `CONTENDERS` or `BUNDLES`.
        machines: how many; None takes each contender's own numbers.
        seeds: of the runs.
        disturbances: keys of `DISTURBANCES`.
        links: keys of `LINKS`.
        share: of a core, for each machine; None takes each task's own.
        tasks: keys of `TASKS`.
    """
    own = {name: contender_of(name).machines for name in contenders}
    wanted = own if machines is None else dict.fromkeys(contenders, tuple(machines))
    sizes = sorted({n for numbers in wanted.values() for n in numbers})
    turns: list[int] = []
    while sizes:
        turns.append(sizes.pop())
        if sizes:
            turns.append(sizes.pop(0))
    order = []
    for position, seed in enumerate(seeds):
        these = [
            Condition(contender, n, seed, disturbance, link, share or TASKS[task].share, task)
            for task, link, disturbance, n, contender in product(
                tasks, links, disturbances, turns, contenders
            )
            if n in wanted[contender]
        ]
        order += these[::-1] if position % 2 else these
    return [condition for condition in order if makes_sense(condition)]


def cuts(machines: int, limit: float, rng: Random) -> list[tuple[float, list[int]]]:
    """When links are cut and mended: pairs of a second and the machines that are cut from then on.

    Each minute a random half of the machines is cut off for a third of a minute, at a random
    moment of it.

    Args:
        machines: how many there are.
        limit: seconds that are to be filled.
        rng: chooses.
    """
    found: list[tuple[float, list[int]]] = []
    minute = 0.0
    while minute < limit:
        moment = minute + rng.uniform(0.0, 60.0 - _CUT_SECONDS)
        found.append((moment, sorted(rng.sample(range(machines), machines // 2))))
        found.append((moment + _CUT_SECONDS, []))
        minute += 60.0
    return found


def alone(machines: int, at: float) -> list[tuple[float, list[int]]]:
    """When links are cut and mended if the second half is cut off once, from this second on."""
    return [(at, list(range(machines // 2, machines))), (at + _ALONE_SECONDS, [])]


def missing(wanted: Iterable[Condition], rows: Iterable[Row]) -> list[Condition]:
    """What of the plan has no row yet."""
    done = {Condition.of(row) for row in rows}
    return [condition for condition in wanted if condition not in done]
