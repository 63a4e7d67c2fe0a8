"""The environments of the study, and how long each is trained in. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

#: The programs, in the order in which they take turns with a seed.
PROGRAMS = ("genkidama", "sb3-zoo", "sb3-ours", "sbx-zoo")
#: Uniformly random actions: one row an environment, for the normalization.
RANDOM = "random"
SEEDS = (1, 2, 3, 4, 5)

#: Seconds of a run beside its training: imports, `init`, weights.
START_UP = 10.0


@dataclass(frozen=True)
class Task:
    """An environment, and how long it is trained in."""

    environment: str
    seconds: float
    #: Whether SBX takes part.
    sbx: bool = False
    #: Episodes that the last weights play.
    episodes: int = 100
    #: Seconds that these take, about.
    judging: float = 5.0
    #: Return that counts as 1 where the zoo publishes none: the `reward_threshold` with which
    #: Gymnasium registers the environment, if it does.
    threshold: float | None = None

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that train in it."""
        return PROGRAMS if self.sbx else PROGRAMS[:-1]


TASKS = (
    Task("CartPole-v1", 15.0, sbx=True),
    Task("Acrobot-v1", 30.0, sbx=True),
    Task("MountainCar-v0", 60.0, sbx=True),
    Task("MountainCarContinuous-v0", 30.0, judging=15.0),
    Task("Pendulum-v1", 30.0, sbx=True),
    Task("LunarLander-v3", 60.0, sbx=True, judging=8.0),
    Task("LunarLanderContinuous-v3", 60.0, sbx=True, judging=10.0),
    Task("BipedalWalker-v3", 150.0, sbx=True, judging=30.0),
    Task("CarRacing-v3", 180.0, episodes=5, judging=90.0),
    Task("Hopper-v5", 120.0, sbx=True, judging=15.0),
    Task("HalfCheetah-v5", 120.0, sbx=True, judging=25.0),
    Task("Walker2d-v5", 120.0, sbx=True, judging=15.0),
    Task("Ant-v5", 120.0, judging=30.0),
    Task("MinAtar/Breakout-v1", 90.0, judging=10.0),
    Task("MinAtar/SpaceInvaders-v1", 90.0, judging=10.0),
    Task("MinAtar/Asterix-v1", 90.0, judging=10.0),
    Task("MinAtar/Freeway-v1", 90.0, episodes=30, judging=30.0),
    Task("MinAtar/Seaquest-v1", 90.0, judging=10.0),
    Task("MiniGrid-Empty-5x5-v0", 30.0),
    Task("MiniGrid-DoorKey-5x5-v0", 90.0),
    Task("highway-fast-v0", 120.0, episodes=30, judging=60.0),
    Task("FrozenLake-v1", 20.0, threshold=0.7),
    Task("Taxi-v4", 60.0, threshold=8.0),
)
OF = {task.environment: task for task in TASKS}


@dataclass(frozen=True)
class Condition:
    """One run of the plan."""

    environment: str
    contender: str
    seed: int

    def __str__(self) -> str:
        return f"{self.environment}, {self.contender}, seed {self.seed}"

    @property
    def seconds(self) -> float:
        """About how long it takes."""
        task = OF[self.environment]
        training = 0.0 if self.contender == RANDOM else START_UP + task.seconds
        return training + task.judging


def plan(
    environments: Sequence[str],
    seeds: Sequence[int],
    programs: Collection[str] = (RANDOM, *PROGRAMS),
) -> list[Condition]:
    """All runs, so that each seed is complete before the next begins.

    Programs take turns within an environment and a seed, and another one begins with each seed: so
    what else the machine does meets all of them.
    """
    found = [Condition(each, RANDOM, seeds[0]) for each in environments]
    for seed in seeds:
        for environment in environments:
            those = OF[environment].programs
            first = seed % len(those)
            turns = those[first:] + those[:first]
            found += [Condition(environment, program, seed) for program in turns]
    return [one for one in found if one.contender in programs]
