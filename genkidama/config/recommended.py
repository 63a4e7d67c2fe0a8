"""Recommended settings for an environment that was looked at, each with its reason.

`RULES` are asked in their order, and the first that holds says which algorithms are preferred. Of
these the first two that can learn the environment's actions are the choices. All other settings
are answers to questions on the figures: a function each. Pure, but for the examples that it reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from genkidama.config.examples import example
from genkidama.config.experiment import read_toml
from genkidama.config.formatting import plural, show

#: Settings by section and key: values, or a `Line`.
Settings: TypeAlias = dict[str, dict[str, Any]]

#: A step that takes longer counts as slow: the learner, at 10 to 40 µs a step, then waits.
SLOW_SECONDS = 1e-3

#: Rewards that explain themselves so far by the actions tell nothing about states.
_EXPLAINED = 0.95

#: A network of so many numbers at its input is a wide one.
_WIDE = 64

#: An episode that has not ended after so many random steps may have no end.
_ENDLESS = 1000

#: Boards have so many cells in height and width, at least, and images so many pixels.
_LEAST_SIDE, _LARGE = 5, 36

#: Lanes of all cores take this share of the free memory, at most.
_MEMORY_SHARE = 0.25


@dataclass(frozen=True)
class Look:
    """Facts about an environment: of its spaces, and of random actions in it."""

    #: The shape of its observations as a network takes them.
    shape: tuple[int, ...] = (1,)
    #: Whether they are images of bytes.
    image: bool = False
    #: Whether they have finite bounds.
    bounded: bool = True
    #: The number of states, where an observation is a whole number.
    states: int = 0
    #: The parts of an observation that is a Dict.
    keys: tuple[str, ...] = ()
    #: The reason why an observation tells a part of the state, if the environment declares that.
    partial: str = ""
    #: The number of choices in each discrete column of an action.
    choices: tuple[int, ...] = ()
    #: Continuous columns of an action, and whether all have bounds.
    numbers: int = 0
    finite_actions: bool = True
    #: Whether the action space is a single Discrete or Box.
    plain_actions: bool = True
    masked: bool = False
    #: Environments that one object is at once, and agents; 0 if it is a plain one.
    lanes_at_once: int = 0
    agents: int = 0
    #: Whether it is one of Atari's games.
    ale: bool = False
    #: The time limit of an episode in steps; 0 if none is known.
    limit: int = 0
    #: Whether it has a clock of its own, as a robot. Then it was not played.
    clock: bool = False
    #: The seconds of a step then; 0 if nobody has said.
    period: float = 0.0
    build_seconds: float = 0.0
    #: Memory of one environment.
    bytes: int = 0
    #: The error that ended the look.
    problem: str = ""
    #: Steps that were played; without any, all that follows is unknown. Times are medians.
    steps: int = 0
    step_seconds: float = 0.0
    reset_seconds: float = 0.0
    #: Whole episodes, those of them that terminated, and their mean length in steps.
    episodes: int = 0
    terminated: int = 0
    length: float = 0.0
    #: The largest absolute number in an observation.
    largest: float = 0.0
    reward_low: float = 0.0
    reward_high: float = 0.0
    #: The share of steps whose reward is not 0.
    rewarded: float = 1.0
    mean_return: float | None = None
    #: The share of the variance of rewards that the actions' squares explain.
    action_cost: float = 0.0
    #: The mean return from which on the registry calls it solved.
    threshold: float | None = None
    #: Bytes that may be used for one core.
    room: int | None = None


class Line(NamedTuple):
    """A setting's value with what is said about it; one that is `off` is written as a comment."""

    value: Any
    about: str = ""
    off: bool = False


class Choice(NamedTuple):
    """An algorithm with all its settings, and the reason to take it."""

    title: str
    why: str
    settings: Settings
    #: Options of `genkidama train`, each after a space.
    options: str = ""


# The questions.


def is_slow(look: Look) -> bool:
    """Steps are so dear that their number decides."""
    return look.clock or look.step_seconds > SLOW_SECONDS


def is_continuous(look: Look) -> bool:
    """Every number of an action is a real one."""
    return look.numbers > 0 and not look.choices


def is_picture(look: Look) -> bool:
    """Neighbours in an observation belong together: an image, or a board with several layers."""
    return look.image or (len(look.shape) == 3 and min(_sides(look)) >= _LEAST_SIDE)


def tells_nothing(look: Look) -> bool:
    """Rewards say nothing about states, as far as random actions show it."""
    constant = look.reward_low == look.reward_high or look.action_cost > _EXPLAINED
    return look.steps > 0 and constant and not look.terminated


def episode_steps(look: Look) -> float:
    """The length of an episode that a policy may come to: the time limit, where one is known."""
    return look.limit or look.length or max(1000, look.steps)


def lanes(look: Look, most: int) -> int:
    """Environments that a core plays at once, a power of two at most: a slow one, or one with a
    clock, alone."""
    if look.agents:
        return look.agents * max(1, 8 // look.agents)
    if look.lanes_at_once > 1:
        return look.lanes_at_once
    if is_slow(look):
        return 1
    if look.bytes and look.room is not None:
        most = min(most, int(_MEMORY_SHARE * look.room) // look.bytes)
    return 1 << max(1, most).bit_length() - 1


def hidden(look: Look) -> list[int]:
    """Hidden layers: while a slow environment makes a step, a wide network learns."""
    return [128, 128] if is_slow(look) and math.prod(look.shape) > _WIDE else [64, 64]


def stop(look: Look) -> dict[str, Any]:
    """`[stop]`: the registry's threshold, over fewer episodes where they are long."""
    window = 20 if is_slow(look) else min(100, max(20, round(50_000 / episode_steps(look))))
    found: dict[str, Any] = {}
    if look.threshold is not None:
        found["mean_return"] = Line(look.threshold, "from here on it counts as solved")
        found["window"] = Line(window, "of so many training episodes")
    long = is_slow(look) or is_picture(look)
    return found | {"seconds": Line(1800 if long else 600, "at most; schedules end here")}


def _sides(look: Look) -> list[int]:
    return sorted(look.shape)[-2:]


# The algorithms.


def _of(name: str, look: Look, lanes: int = 1, **more: dict[str, Any]) -> Settings:
    """The settings of an example, whose environment may be another, and more."""
    found = read_toml(example(name))
    found = {key: table for key, table in found.items() if key not in ("seed", "stop")}
    for section, table in ({"environment": _environment(look, lanes)} | more).items():
        found[section] = table if section == "environment" else found.get(section, {}) | table
    if look.clock:
        found["child"] = found.get("child", {}) | {"cores": 1}
    return found


def _environment(look: Look, most_lanes: int) -> dict[str, Any]:
    """`[environment]` with what every algorithm there may need."""
    found: dict[str, Any] = {}
    if (count := lanes(look, most_lanes)) > 1:
        found["lanes"] = Line(count, _about_lanes(look))
    if look.clock:
        found["period"] = Line(
            look.period or 0.02, "seconds of a step" + ": set it to yours" * (not look.period)
        )
    if is_slow(look) and count == 1:
        found["exclusive"] = Line(True, "if a machine can have one open at a time", off=True)
    longest = look.length if look.episodes else look.steps
    limited = look.limit or look.terminated < look.episodes or look.lanes_at_once or look.agents
    if longest >= _ENDLESS and not limited:
        steps = 10 * round(look.length) if look.episodes else _ENDLESS
        limit = [{"name": "TimeLimit", "options": {"max_episode_steps": steps}}]
        about = "a policy that goes nowhere would play for ever"
        if not look.episodes:
            about = "if no episode ends by itself"
        found["wrappers"] = Line(limit, about, off=not look.episodes)
    return found


def _normalization(look: Look) -> dict[str, Any]:
    """Running statistics; none of states, as a column that is rarely 1 would become a large one."""
    return ({} if look.states else {"normalize_observations": True}) | {"normalize_rewards": True}


def _about_lanes(look: Look) -> str:
    if look.agents or look.lanes_at_once > 1:
        return "one object is as many"
    if look.steps:
        return f"a step takes {short(look.step_seconds)}: several share a pass of the network"
    return ""


def ppo(look: Look, way: str = "act") -> Choice:
    """PPO on a perceptron; without a `way`, children act, and one learner learns."""
    slow, count = is_slow(look), lanes(look, 8)
    steps = 64 if slow else max(16, min(128, 1024 // count // 4 * 4))
    found: Settings = {
        "environment": _normalization(look) | _environment(look, 8),
        "network": {"hidden": hidden(look)},
        "algorithm": {
            "name": "ppo",
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "batch_size": Line(count * steps, f"{steps} steps of each lane"),
            "epochs": 10,
            "minibatch_size": 64 if slow else 128,
            "entropy_coefficient": 0.0 if is_continuous(look) else 0.01,
            "max_gradient_norm": 0.5,
            "normalize_advantages": True,
        },
        "optimizer": {"name": "adam", "learning_rate": 1e-3, "schedule": "linear"},
        "parent": {"rule": "experience", "checkpoint_seconds": 5},
    }
    if slow:
        found["parent"]["rule_options"] = Line({"batch": 256}, "steps are few: learn from these")
    if look.clock:
        found["child"] = {"cores": 1}
    elif way == "thesis":
        found["parent"] = {"rule": "blend", "alpha": 0.5}
        found["child"] = {"beta": 0.5, "exchange": "episode"}
    elif way == "average":
        follows = "absent: follows the number of children"
        found["parent"] = {"rule": "difference", "alpha": Line(0.5, follows, off=True)}
        found["child"] = {"exchange": "chunk"}
        del found["algorithm"]["epochs"]  # one: each step is in four batches
        found["algorithm"]["minibatch_size"] = Line(64, follows, off=True)
        found["algorithm"]["clip"] = Line(
            0.1, "half of what is usual: each step is in four batches"
        )
        found["optimizer"]["learning_rate"] = Line(1.4e-3, follows, off=True)
        if count == 8:
            found["environment"]["lanes"] = Line(8, follows, off=True)
        else:
            found["environment"].setdefault("lanes", count)
    if look.states and look.choices:
        found["algorithm"] |= {
            "entropy_coefficient": Line(0.05, "high, as no state tells of another; it falls to 0"),
            "entropy_schedule": "linear",
        }
    if is_continuous(look):
        found["network"]["sde_steps"] = Line(16, "smooth exploration, for motors (gSDE)", off=True)
    return Choice("PPO", "", found)


def a3c(look: Look, way: str = "act") -> Choice:
    """A3C: one update from each batch."""
    found = ppo(look, way).settings
    algorithm = found["algorithm"] | {"name": "a3c"}
    for key in ("epochs", "minibatch_size", "clip"):
        algorithm.pop(key, None)
    return Choice("A3C", "", found | {"algorithm": algorithm})


def gsde(look: Look, way: str = "act") -> Choice:
    """PPO with noise that follows the state."""
    count = lanes(look, 8)
    batch = {"batch_size": Line(32 * count, "32 steps of each lane"), "minibatch_size": 64}
    found = _of("mountaincar", look, 8, algorithm=batch)
    found["environment"] = _normalization(look) | found["environment"]
    cooperation = ppo(look, way).settings
    found |= {key: cooperation[key] for key in ("parent", "child") if key in cooperation}
    if "clip" in cooperation["algorithm"]:
        found["algorithm"]["clip"] = cooperation["algorithm"]["clip"]
        del found["algorithm"]["epochs"]
    return Choice("PPO with noise that follows the state (gSDE)", "", found)


def sac(look: Look, way: str = "act") -> Choice:
    """SAC: every step is kept and learned from many times."""
    beside = is_slow(look) and way == "act"
    found = _of("rotary/sac" if beside else "pendulum/sac", look, network={"hidden": hidden(look)})
    if beside and not look.clock:
        del found["child"]
    algorithm = found["algorithm"]
    algorithm.pop("initial_value", None)
    if look.reward_low == look.reward_high > 0.0:
        value = round(look.reward_low / (1.0 - algorithm["gamma"]), 6)
        algorithm["initial_value"] = Line(value, "of an episode without an end")
    return Choice("SAC, beside the parent" if beside else "SAC", "", found)


def dqn(look: Look, way: str = "act") -> Choice:
    """DQN, in each child."""
    high = max(abs(look.reward_low), abs(look.reward_high), 1.0)
    scale = Line(float(f"{1.0 / high:.1g}"), "errors are best below 1, where the loss is quadratic")
    found = _of("cartpole/dqn", look, algorithm={"dueling": not look.masked})
    found["environment"] = {"reward_scale": scale} | found["environment"]
    found["parent"] = {"alpha": 0.9, "checkpoint_seconds": 5}
    return Choice("DQN", "", found)


def convolution(look: Look, way: str = "act") -> Choice:
    """PPO on GA3C with convolutions."""
    small = min(_sides(look)) < _LARGE
    count = lanes(look, 32 if small else 8)
    found = _of(
        "minatar/breakout" if small else "atari/pong-ppo", look, ga3c={"environments": count}
    )
    found["environment"] = {
        key: line for key, line in found["environment"].items() if key == "wrappers"
    }
    if small and look.shape[-1] > min(look.shape[:-1]):
        del found["network"]["channels"]
    if not small:
        del found["network"]["convolutions"]  # by size
    if look.ale:
        found["environment"] = {
            "vectorized": Line(True, "ALE repeats frames, scales and stacks by itself"),
            "options": Line({"reward_clipping": False}, "it would report clipped returns"),
            "clip_rewards": 1.0,
        }
    return Choice("PPO with convolutions on GA3C", "", found, " --children 1")


def perceptron(look: Look, way: str = "act") -> Choice:
    """PPO on a perceptron that sees each pixel, or in place of a game's screen its memory."""
    found = ppo(look, way).settings
    if look.ale:
        found["environment"]["options"] = {"obs_type": "ram"}
    elif look.image:
        grey = [{"name": "GrayscaleObservation"}] if look.shape[-1] == 3 else []
        limit = found["environment"].get("wrappers", Line([]))
        first = [] if limit.off else limit.value
        found["environment"]["wrappers"] = [*first, *grey, {"name": "FlattenObservation"}]
    return Choice("PPO on a perceptron", "", found)


def remembering(look: Look, way: str = "act") -> Choice:
    """PPO on a perceptron with a memory, for what cannot be seen at once."""
    found = perceptron(look, way).settings
    about = f"{look.partial}; 0 (none) is faster, if what is seen suffices"
    found["network"]["memory"] = Line(64, about)
    return Choice("PPO with a memory", "", found)


Algorithm: TypeAlias = Callable[[Look, str], Choice]

#: The looks that an algorithm can learn from; the others can learn from any.
_FITS: dict[Algorithm, Callable[[Look], bool]] = {
    sac: lambda look: (
        is_continuous(look) and look.plain_actions and look.finite_actions and lanes(look, 1) == 1
    ),
    dqn: lambda look: len(look.choices) == 1 and look.plain_actions and lanes(look, 1) == 1,
    gsde: is_continuous,
    convolution: lambda look: not look.clock,
}

#: When to take it: said of a second choice.
_WHEN: dict[Algorithm, str] = {
    ppo: "it takes the least time for each step, and more steps",
    perceptron: "it needs no torch, and learns later",
    a3c: "it takes one update for each batch, the least time of all",
    sac: "it learns from each step many times, so it takes fewer steps, and more time for each",
    dqn: "it learns from each step many times, so it takes fewer steps, and more time for each",
    gsde: "its noise goes one way for a while, so it explores farther, and shakes no motor",
    convolution: "it sees what is beside what; it needs torch",
}


class Preference(NamedTuple):
    """Algorithms in the order of preference, if `holds`, with the reason."""

    holds: Callable[[Look], bool]
    why: Callable[[Look], str]
    order: tuple[Algorithm, ...]


#: The first that holds counts.
RULES: tuple[Preference, ...] = (
    Preference(
        lambda look: bool(look.partial),
        lambda look: f"{look.partial}, so it must remember what it has seen",
        (remembering, ppo),
    ),
    Preference(
        is_picture,
        lambda look: f"observations are {_size(look)} in size, and neighbours belong together",
        (convolution, perceptron, ppo),
    ),
    Preference(
        lambda look: look.clock,
        lambda look: "it has a clock: the number of steps decides, and acting must not wait",
        (sac, ppo, a3c),
    ),
    Preference(
        is_slow,
        lambda look: f"a step takes {short(look.step_seconds)}, so their number decides",
        (sac, dqn, ppo, a3c),
    ),
    Preference(
        lambda look: is_continuous(look) and tells_nothing(look),
        lambda look: (
            "rewards tell nothing but the cost of actions, so it must explore far before it "
            "learns anything"
        ),
        (gsde, sac, ppo),
    ),
    Preference(
        is_continuous,
        lambda look: f"{_cheap(look)}, and actions are continuous",
        (ppo, sac, a3c),
    ),
    Preference(
        tells_nothing,
        lambda look: f"{_cheap(look)}, and no reward was seen to differ, so it must play much",
        (ppo, dqn, a3c),
    ),
    Preference(lambda look: True, lambda look: _cheap(look), (ppo, dqn, a3c)),
)


def recommend(look: Look, torch: bool = True, way: str = "act") -> tuple[Choice, Choice]:
    """The first and the second choice.

    Args:
        look: the environment.
        torch: whether it is installed.
        way: how children cooperate, `"act"`, `"average"` or `"thesis"`, where the algorithm leaves
            that open.
    """
    rule = next(rule for rule in RULES if rule.holds(look))
    able = [each for each in rule.order if each not in _FITS or _FITS[each](look)]
    if not torch:
        able.sort(key=lambda each: each is not perceptron)
    why = rule.why(look)
    if able[0] is perceptron and not torch:
        why = "torch is not installed, so there are no convolutions"
    first, second = (each(look, way) for each in able[:2])
    return first._replace(why=why), second._replace(why=_WHEN[able[1]])


# Several machines.

#: Up to so many seconds a step costs less than learning from it.
_QUICK_SECONDS = 30e-6

#: The best way to use several machines; the first that holds counts. The figures are those of eight
#: machines in docs/results/scaling.md.
_MACHINES: tuple[tuple[Callable[[Look], bool], str], ...] = (
    (
        is_picture,
        "act: 2.8 times sooner than averaging in MinAtar's Breakout; average if the link to the "
        "parent is too slow for pictures",
    ),
    (
        is_slow,
        "act if the parent's machine has a core to spare, else average; not measured with steps "
        "as slow as these",
    ),
    (
        is_continuous,
        "act: 1.4 times sooner than averaging in the continuous LunarLander; in Hopper averaging "
        "was surer",
    ),
    (
        lambda look: look.step_seconds < _QUICK_SECONDS,
        "act: 2.0 times sooner than averaging in CartPole, whose steps are as quick",
    ),
    (
        lambda look: True,
        "act if the parent's machine has a core to spare, else average: 6.9 and 3.0 times as soon "
        "as one machine in LunarLander",
    ),
)


def machines(look: Look) -> str:
    """The best way to use several machines for a task of this kind, and the reason."""
    return next(words for holds, words in _MACHINES if holds(look))


# Words.


def short(seconds: float) -> str:
    """A duration: `"21 µs"`, `"3.2 ms"`, `"1.5 s"`."""
    unit, size = next(
        (each for each in (("s", 1.0), ("ms", 1e-3)) if seconds >= each[1]), ("µs", 1e-6)
    )
    return f"{seconds / size:.2g} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"


def _size(look: Look) -> str:
    return " × ".join(map(str, look.shape))


def _cheap(look: Look) -> str:
    if not look.steps:
        return "it was not played, so its steps count as quick"
    return f"a step takes {short(look.step_seconds)}, so many can be played"


def describe(look: Look) -> dict[str, str]:
    """The figures in sentences, by subject."""
    if look.states:
        seen = f"one of {plural(look.states, 'state')}"
    else:
        seen = "an image, " * look.image + f"{_size(look)} numbers"
        seen += "" if look.bounded else ", without bounds"
        seen += f", up to {show(look.largest)}" if look.steps else ""
    if look.keys:
        seen += f", of the parts {', '.join(look.keys)}"
    parts = [plural(size, "choice") for size in look.choices[:4]]
    parts += ["…"] * (len(look.choices) > 4)
    parts += [plural(look.numbers, "number")] * (look.numbers > 0)
    acts = " and ".join(parts) + ", some of them masked" * look.masked
    acts += ", without bounds" * (not look.finite_actions)
    said = {"observations": seen, "actions": acts}
    if look.lanes_at_once > 1 or look.agents:
        said["lanes"] = f"one object has {look.agents or look.lanes_at_once}"
    if not look.steps:
        why = "it has a clock of its own" if look.clock else look.problem or "nothing was played"
        return said | {"not played": why}
    said["time"] = (
        f"a step takes {short(look.step_seconds)}, a reset {short(look.reset_seconds)}, "
        f"building it {short(look.build_seconds)}"
    )
    limit = f"; the time limit is {look.limit:,}" if look.limit else ""
    if look.episodes:
        said["episodes"] = (
            f"{look.length:,.0f} steps, {look.terminated:,} of {look.episodes:,} ended by the task "
            f"itself{limit}"
        )
    else:
        said["episodes"] = f"none ended in {plural(look.steps, 'step')}{limit}"
    if look.reward_low == look.reward_high:
        rewards = f"always {show(look.reward_low)}"
    else:
        rewards = f"from {show(look.reward_low)} to {show(look.reward_high)}"
        if look.rewarded < 1.0:
            rewards += f", and 0 in {100 * (1 - look.rewarded):.3g} % of the steps"
        if look.action_cost > _EXPLAINED:
            rewards += ", which the actions' squares alone explain"
    if look.mean_return is not None:
        rewards += f"; {show(round(look.mean_return, 3))} an episode"
    said["rewards"] = rewards
    if look.threshold is not None:
        said["solved"] = f"from a mean return of {show(look.threshold)} on"
    if look.problem:
        said["problem"] = look.problem
    return said | {"machines": f"with several, {machines(look)} (--way)"}
