"""What is measured: the tables that the command chooses from, and the order of the runs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from itertools import product
from random import Random
from typing import Any

Row = dict[str, Any]

#: What every contender that learns with our code is told. The rate stays as it is at the start:
#: otherwise it would depend on the limit of time, and fall further for one machine than for eight.
_COMMON = {"optimizer.schedule": "constant", "child.cores": 1}


#: Every child learns by itself, with the settings of its task's example.
_LEARNS = {
    "parent.rule": "blend",
    "parent.rule_options": {},
    "child.exchange": "free",
    "child.exchange_seconds": 0.5,
}

#: A parent that is a copy of its one child.
_COPIES = {**_LEARNS, "parent.alpha": 1.0, "child.beta": 0.0}

#: What `lunarlander.toml` was before children only acted in it.
_BLEND = {
    **_LEARNS,
    "environment.lanes": 1,
    "algorithm.minibatch_size": 128,
    "algorithm.entropy_coefficient": 0.0,
    "optimizer.learning_rate": 5e-4,
}

_AVERAGING = "lunarlander/averaging.toml"

#: The rate falls with the steps of all machines, and so at the same step for any number of them.
_AVERAGE = {"optimizer.schedule": "linear"}

#: The best settings that are known for one machine that learns by itself, in this loop.
_ALONE = {
    **_AVERAGE,
    **_COPIES,
    "environment.lanes": 8,
    "algorithm.batch_size": 1024,
    "algorithm.epochs": 4,
    "algorithm.clip": 0.2,
    "algorithm.minibatch_size": 64,
    "algorithm.normalize_advantages": True,
    "optimizer.learning_rate": 7e-4,
}

_CUT_SECONDS = 20.0

#: With `churn` a machine leaves so often, and is back as long afterwards.
_CHURN_SECONDS = 10.0


@dataclass(frozen=True)
class Contender:
    """One way to learn with n machines."""

    #: Who runs it: `ours`, `ddp`, `flower` or `sb3`.
    kind: str
    #: The experiment below `examples/`, "" for the task's own; and its settings that differ.
    experiment: str = ""
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

    def overrides(self) -> dict[str, Any]:
        """The settings that differ from the experiment's file, by their dotted keys."""
        return {**_COMMON, **(self.settings or {})}


#: Variants of ours, then the peers. A new variant is one line.
CONTENDERS: dict[str, Contender] = {
    "experience": Contender("ours", title="Genkidama, children act, one learner"),
    "alone": Contender(
        "ours",
        settings=_COPIES,
        machines=(1,),
        title="Genkidama, one machine that learns by itself",
    ),
    "average": Contender("ours", _AVERAGING, _AVERAGE, title="Genkidama, averaging in chunks"),
    "average-constant": Contender(
        "ours", _AVERAGING, machines=(8,), title="Genkidama, averaging at a constant rate"
    ),
    "average-half": Contender(
        "ours",
        _AVERAGING,
        {**_AVERAGE, "parent.encoding": "float16"},
        machines=(8,),
        title="Genkidama, averaging in chunks, float16",
    ),
    "alone-tuned": Contender(
        "ours",
        _AVERAGING,
        _ALONE,
        machines=(1,),
        title="Genkidama, one machine with its best settings",
    ),
    "blend": Contender("ours", settings=_BLEND, machines=(1, 8), title="Genkidama, blend"),
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


#: Four machines end, and stop to explore, after as many steps each as one by itself.
_MIXES = {**_LEARNS, "parent.alpha": 0.5, "child.beta": 0.5, "stop.steps": 200_000}

#: SAC and DQN, whose children keep their replay to themselves.
OFF_POLICY: dict[str, Contender] = {
    f"{algorithm}-{name}": Contender("ours", file, settings, machines=machines, title=title)
    for algorithm, file in (("sac", "pendulum/sac.toml"), ("dqn", "cartpole/dqn.toml"))
    for name, settings, machines, title in (
        ("alone", _COPIES, (1,), f"{algorithm}, one machine"),
        ("blend", _MIXES, (4,), f"{algorithm}, weights averaged"),
        (
            "difference",
            {**_MIXES, "parent.rule": "difference"},
            (4,),
            f"{algorithm}, differences added by half",
        ),
    )
}


def contender_of(name: str) -> Contender:
    """The contender of this name."""
    return (CONTENDERS | BUNDLES | OFF_POLICY)[name]


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
    #: Its example below `examples/`, by which a learner learns, and what differs from that.
    experiment: str
    own: Mapping[str, Any] = field(default_factory=dict)
    #: What differs from `averaging.toml` for those that average, by dotted keys.
    average: Mapping[str, Any] = field(default_factory=dict)
    #: Steps of all machines, with which the rate of those falls to its end.
    steps: int = 450_000
    #: Of returns, against LunarLander's.
    scale: float = 1.0
    #: Seconds between two snapshots, times the number of machines.
    every: float = 8.0
    #: Modules that a child may import for it, and one that takes an installation of its own.
    allow: tuple[str, ...] = ()
    module: str = ""
    #: `environment.options` of one child whose physics differ.
    physics: Mapping[str, Any] = field(default_factory=dict)


_PLAIN = {"algorithm.entropy_coefficient": 0.0, "algorithm.entropy_schedule": "constant"}
_NORMAL = {
    **_PLAIN,
    "environment.normalize_observations": True,
    "environment.normalize_rewards": True,
    "environment.reward_scale": 1.0,
    "algorithm.gae_lambda": 0.95,
}
#: As `genkidama init` writes it for tasks without an example.
_INIT = {
    **_NORMAL,
    "algorithm.batch_size": 1024,
    "algorithm.epochs": 10,
    "algorithm.minibatch_size": 128,
    "optimizer.learning_rate": 1e-3,
    "parent.rule_options": {},
}
_ACROBOT = {"algorithm.gamma": 0.99, "algorithm.entropy_coefficient": 0.01}
_HOPPER = {"algorithm.gamma": 0.99}

_FIRST_TASK = "lunarlander"

#: Of each task of the study; LunarLander has more.
_SEEDS = 5

TASKS: dict[str, Task] = {
    "lunarlander": Task(
        "LunarLander-v3",
        goal=200.0,
        margin=30.0,
        limit=600.0,
        experiment="lunarlander/lunarlander.toml",
        physics={"gravity": -6.0},
    ),
    "cartpole": Task(
        "CartPole-v1",
        goal=475.0,
        margin=15.0,
        limit=180.0,
        experiment="cartpole/cartpole.toml",
        own={"optimizer.learning_rate": 1e-3},  # its own falls, and is constant here
        average={
            **_PLAIN,
            "environment.reward_scale": 1.0,
            "algorithm.gamma": 0.98,
            "algorithm.gae_lambda": 0.9,
        },
    ),
    "breakout": Task(
        "minatar.gym:BaseEnv",
        goal=5.0,
        margin=1.0,
        scale=0.035,
        every=24.0,
        limit=900.0,
        experiment="minatar/breakout.toml",
        own={
            "parent.rule": "experience",
            "child.backend": "hogwild",
            "environment.lanes": 16,
            "algorithm.batch_size": 2048,
        },
        average={
            **_PLAIN,
            "environment.options": {"game": "breakout", "use_minimal_action_set": True},
            "environment.reward_scale": 1.0,
            "network.name": "convolutional",
            "network.channels": "last",
            "network.convolutions": [[16, 3, 2]],
            "network.hidden": [128],
            "network.activation": "relu",
            "algorithm.gamma": 0.99,
            "algorithm.gae_lambda": 0.95,
            "algorithm.entropy_coefficient": 0.01,
        },
        steps=5_000_000,
        allow=("minatar",),
    ),
    "continuous": Task(
        "LunarLanderContinuous-v3",
        goal=200.0,
        margin=30.0,
        every=32.0,
        limit=900.0,
        experiment="lunarlander/continuous.toml",
        average=_PLAIN,
        steps=1_000_000,
        physics={"gravity": -6.0},
    ),
    "acrobot": Task(
        "Acrobot-v1",
        goal=-100.0,
        margin=8.0,
        scale=0.4,
        every=4.0,
        limit=300.0,
        experiment="cartpole/cartpole.toml",
        own={**_INIT, **_ACROBOT},
        average={**_NORMAL, **_ACROBOT},
    ),
    "hopper": Task(
        "Hopper-v5",
        goal=1500.0,
        margin=200.0,
        scale=8.0,
        every=32.0,
        limit=900.0,
        experiment="cartpole/cartpole.toml",
        own={**_INIT, **_HOPPER},
        average={**_NORMAL, **_HOPPER},
        steps=1_000_000,
        module="mujoco",
    ),
    "pendulum": Task(
        "Pendulum-v1",
        goal=-200.0,
        margin=10.0,
        limit=180.0,
        experiment="pendulum/pendulum.toml",
        average=_NORMAL,
    ),
}

#: The tasks of the study.
STUDIED = ("lunarlander", "cartpole", "breakout", "continuous", "acrobot", "hopper")


@dataclass(frozen=True)
class Disturbance:
    """What goes wrong."""

    #: Machine 0 gets this many times its share, and the others so many times theirs.
    first: float = 1.0
    rest: float = 1.0
    #: Whether a random half of the machines is cut off once a minute, at a random moment.
    cuts: bool = False
    #: Whether a random machine leaves every ten seconds, and is back ten seconds later.
    churn: bool = False
    #: Whether the environment of child 0 has other physics than that which is judged.
    physics: bool = False


DISTURBANCES: dict[str, Disturbance] = {
    "none": Disturbance(),
    "slow10": Disturbance(first=0.1),
    "slow100": Disturbance(first=0.01),
    "unequal": Disturbance(first=10.0, rest=0.5),
    "cuts": Disturbance(cuts=True),
    "churn": Disturbance(churn=True),
    "physics": Disturbance(physics=True),
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
    "delay": Link(100.0, 20.0),
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

    @property
    def side_by_side(self) -> int:
        """How many runs like it are measured at once: as many as keep eight machines busy.

        Where a learner works beside the parent, a network is made or disturbed, it is one.
        """
        alone = self.contender.startswith("alone")
        apart = self.disturbance == self.link == "none" and self.share <= 0.1
        return max(1, 8 // self.machines) if apart and (alone or self.contender == "average") else 1

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
    averages = contender.experiment == _AVERAGING
    own = {} if contender.experiment else task.own
    settings = {**(task.average if averages else own), **contender.overrides()}
    settings["seed"] = condition.seed
    if averages or condition.task != _FIRST_TASK:
        settings["stop.steps"] = task.steps
    if condition.contender in BUNDLES:  # they begin to learn after as many steps of all together
        settings["algorithm.start_steps"] = 512 // condition.machines
    if condition.task != _FIRST_TASK:
        settings["environment.id"] = task.environment
    if contender.together:
        settings["child.cores"] = math.ceil(condition.machines * condition.share)
    if DISTURBANCES[condition.disturbance].physics:
        other = {f"environment.options.{key}": value for key, value in task.physics.items()}
        settings["children"] = [{"name": "child-0", "settings": other}]
    return contender.experiment or task.experiment, settings


def shares(condition: Condition) -> list[float]:
    """The share of each control group, in cores: one a machine, or one for all together."""
    if contender_of(condition.contender).together:
        return [condition.share * condition.machines]
    disturbance = DISTURBANCES[condition.disturbance]
    rest = [condition.share * disturbance.rest] * (condition.machines - 1)
    return [condition.share * disturbance.first, *rest]


def problem(condition: Condition, cores: int) -> str | None:
    """Why this cannot be measured, in one line; None if it can.

    Args:
        condition: what is to be measured.
        cores: of this machine.
    """
    asked = sum(shares(condition))
    name = f"{condition.contender}, {condition.machines} machines, {condition.disturbance}"
    kind, task = contender_of(condition.contender).kind, TASKS[condition.task]
    if condition.task != _FIRST_TASK and kind != "ours":
        able = " ".join(name for name, one in CONTENDERS.items() if one.kind == "ours")
        return f"{condition.contender}: it learns {_FIRST_TASK} only; take --contenders {able}"
    if task.module and find_spec(task.module) is None:
        return (
            f"{task.environment}: takes {task.module}, which this interpreter lacks; run the study "
            "with benchmarks/.venv/bin/python after make peers, or leave it out with --tasks"
        )
    if asked > 0.9 * cores:
        return (
            f"{name}: the shares are {asked:g} cores, and this machine has {cores}, a tenth of "
            "them for the parent; take a smaller --share or fewer --machines"
        )
    if min(shares(condition)) < 0.001:
        return f"{name}: a share below 0.001 cores; take a larger --share"
    disturbance = DISTURBANCES[condition.disturbance]
    if disturbance.cuts and LINKS[condition.link] is None:
        return f"{name}: the loopback cannot be cut; take --links ethernet"
    if disturbance.physics and not task.physics:
        return f"{name}: {task.environment} has no other physics; take --tasks lunarlander"
    return None


def makes_sense(condition: Condition) -> bool:
    """Whether the row would say anything: what is not disturbed needs no second measurement."""
    contender = contender_of(condition.contender)
    disturbance = DISTURBANCES[condition.disturbance]
    if contender.machines == (1,) and condition.machines > 1:
        return False
    if contender.together:
        return condition.disturbance == "none" and condition.link == "none"
    if contender.kind != "ours" and (disturbance.cuts or disturbance.churn or disturbance.physics):
        return False  # a group of torch.distributed's is fixed, and Flower waits for its minimum
    return condition.disturbance == "none" or condition.machines > 1


def plan(
    contenders: Sequence[str],
    machines: Iterable[int] | None,
    seeds: Iterable[int],
    disturbances: Iterable[str] = ("none",),
    links: Iterable[str] = ("none",),
    share: float = 0.1,
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
        share: of a core, for each machine.
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
            Condition(contender, n, seed, disturbance, link, share, task)
            for task, link, disturbance, n, contender in product(
                tasks, links, disturbances, turns, contenders
            )
            if n in wanted[contender]
        ]
        order += these[::-1] if position % 2 else these
    return [condition for condition in order if makes_sense(condition)]


#: What the study measures of each task, with how many machines.
_CELLS = (
    ("alone", 1),
    ("alone-tuned", 1),
    ("average", 4),
    ("average", 8),
    ("experience", 4),
    ("experience", 8),
)


def study(tasks: Sequence[str], seeds: Iterable[int]) -> list[Condition]:
    """The runs of the six tasks, and of LunarLander's links and unequal machines; seed by seed.

    One machine of 1 core is what a laptop among boards is compared with.

    Args:
        tasks: keys of `TASKS`.
        seeds: from 1 on. Beyond the fifth they are LunarLander's alone, without unequal machines.
    """
    found: list[Condition] = []
    for seed in seeds:
        all_of_it = seed <= _SEEDS
        those = [one for one in tasks if all_of_it or one == _FIRST_TASK]
        cells = [Condition(name, n, seed, task=one) for one in those for name, n in _CELLS]
        if _FIRST_TASK in tasks:
            links = [
                ("none", "delay"),
                ("none", "wifi"),
                ("none", "internet"),
                ("cuts", "ethernet"),
            ]
            cells += [Condition("average", 8, seed, *way) for way in links]
        if _FIRST_TASK in tasks and all_of_it:
            cells += [Condition("average", 8, seed, one) for one in ("unequal", "churn", "physics")]
            cells.append(Condition("alone-tuned", 1, seed, share=1.0))
        found += sorted(cells, key=lambda one: -one.side_by_side)
    return found


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


def churn(machines: int, limit: float, rng: Random) -> list[tuple[float, int, int | None]]:
    """Seconds, the machine that leaves then, and the one that left before and is back.

    Args: as for `cuts`.
    """
    found: list[tuple[float, int, int | None]] = []
    gone: int | None = None
    for turn in range(1, int(limit / _CHURN_SECONDS)):
        leaves = rng.choice([machine for machine in range(machines) if machine != gone])
        found.append((turn * _CHURN_SECONDS, leaves, gone))
        gone = leaves
    return found


def missing(wanted: Iterable[Condition], rows: Iterable[Row]) -> list[Condition]:
    """What of the plan has no row yet."""
    done = {Condition.of(row) for row in rows}
    return [condition for condition in wanted if condition not in done]
