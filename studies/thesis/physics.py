"""Whether LunarLander is the one that the thesis had: gym 0.23's against Gymnasium's.

gym 0.23.1 and Box2D-kengz 2.3.3 are what the thesis' repository asks for. They need an environment
of their own, which takes two minutes and a C++ compiler:

    python -m venv /tmp/old
    /tmp/old/bin/pip install "numpy<2" swig "setuptools<66" wheel pygame
    PATH=/tmp/old/bin:$PATH /tmp/old/bin/pip install --no-build-isolation gym==0.23.1 \\
        Box2D-kengz==2.3.3
    python -m studies.thesis.physics /tmp/old/bin/python

The repository lists Box2D 2.3.2, too. With today's SWIG that can be imported once the lines of its
`Box2D.py` that end with `_swigconstant(_Box2D)` are deleted.

Episodes are played there: with random actions, with those of a heuristic that lands, and with a
mixture. The same actions are then played here from the same seeds. An episode is equal if all its
observations and rewards are, to the bit.

gym makes a particle for each step with an engine on, and without a window removes none until the
episode ends. The lander does not feel them, but the world has to move them: the last line says what
that costs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from benchmarks.processes import command
from genkidama.errors import EnvironmentFailure
from studies.thesis import lander_v2
from studies.thesis.options import add_episodes

__all__ = ["cost", "episodes", "equal"]

RECORDER = Path(__file__).with_name("recorder.py")
#: Steps are grouped by so many particles, and a group with fewer steps is left out.
_GROUP = 50
_STEPS = 100

Array = npt.NDArray[Any]


def episodes(python: str, each: int) -> dict[str, dict[str, Array]]:
    """What gym plays, by way and episode.

    `observations`, `actions` and `rewards`, and of each step how many `particles` there were before
    it, and how many `seconds` it took.

    Args:
        python: an interpreter that has gym.
        each: episodes of each way to act.

    Raises:
        EnvironmentFailure: it could not play.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "played.npz"
        line = [python, str(RECORDER), str(path), str(each)]
        try:
            done = subprocess.run(line, capture_output=True, text=True)
        except OSError as error:
            raise EnvironmentFailure(f"{python}: cannot be run ({error.strerror})") from error
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["nothing"]
            raise EnvironmentFailure(f"{python}: gym could not play: {last[0]}")
        found: dict[str, dict[str, Array]] = {}
        with np.load(path) as arrays:
            for name, array in arrays.items():
                episode, _, what = name.rpartition("/")
                found.setdefault(episode, {})[what] = array
    return found


def equal(environment: gymnasium.Env[Any, Any], seed: int, played: Mapping[str, Array]) -> bool:
    """Whether an episode goes here as it went there."""
    observation, _ = environment.reset(seed=seed)
    seen, rewards = [observation], []
    ended = False
    for action in played["actions"].tolist():
        if ended:
            return False
        observation, reward, terminated, truncated, _ = environment.step(action)
        seen.append(observation)
        rewards.append(reward)
        ended = terminated or truncated
    return (
        ended
        and np.array_equal(np.array(seen), played["observations"])
        and np.array_equal(np.array(rewards), played["rewards"])
    )


def cost(played: Iterable[Mapping[str, Array]]) -> tuple[float, float] | None:
    """What a step takes, and how much more for each particle: µs; None if there is no particle.

    A line through the medians of steps with about as many particles.
    """
    episodes = list(played)
    particles = np.concatenate([one["particles"] for one in episodes])
    seconds = np.concatenate([one["seconds"] for one in episodes])
    groups = particles // _GROUP
    found = [group for group in np.unique(groups) if (groups == group).sum() >= _STEPS]
    if len(found) < 2:
        return None
    middles = [particles[groups == group].mean() for group in found]
    medians = [1e6 * np.median(seconds[groups == group]) for group in found]
    slope, start = np.polyfit(middles, medians, 1)
    return float(start), float(slope)


def report(played: Mapping[str, Mapping[str, Array]]) -> Iterator[str]:
    """A line for each of our two forms of LunarLander, and one for the cost of particles."""
    returns = [float(one["rewards"].sum()) for one in played.values()]
    yield f"{len(played)} episodes with a mean return of {np.mean(returns):.1f}"
    v3 = gymnasium.make("LunarLander-v3", disable_env_checker=True)
    for what, environment in (("LunarLander-v3", v3), ("lander_v2", lander_v2.make())):
        same = sum(equal(environment, int(name.split("/")[1]), one) for name, one in played.items())
        yield f"{what}: {same} of {len(played)} are equal"
    if (found := cost(played.values())) is not None:
        step, particle = found
        yield f"a step of gym's takes {step:.0f} µs, and {particle:.2f} more for each particle"


@command
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m studies.thesis.physics",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("python", help="the interpreter of an environment with gym 0.23")
    add_episodes(parser, 100, "of each way to act")
    options = parser.parse_args(arguments)
    for line in report(episodes(options.python, options.episodes)):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
