"""Plays LunarLander-v2 with gym 0.23 and writes down what happens, for `physics.py`.

It runs with another interpreter, which has gym and NumPy and nothing of ours:

    python recorder.py FILE EPISODES
"""

import sys
import time

import gym
import numpy as np
from gym.envs.box2d.lunar_lander import heuristic

#: How many of 10 steps follow the heuristic that lands; the others are random.
WAYS = (0, 7, 10)


def main(path: str, episodes: int) -> None:
    environment = gym.make("LunarLander-v2")
    played = {}
    for way in WAYS:
        for episode in range(episodes):
            rng = np.random.default_rng(episode)
            observations = [environment.reset(seed=episode)]
            actions, rewards, particles, seconds = [], [], [], []
            done = False
            while not done:
                action = int(heuristic(environment.unwrapped, observations[-1]))
                if rng.integers(10) >= way:
                    action = int(rng.integers(4))
                particles.append(len(environment.unwrapped.particles))
                began = time.perf_counter()
                observation, reward, done, _ = environment.step(action)
                seconds.append(time.perf_counter() - began)
                observations.append(observation)
                actions.append(action)
                rewards.append(reward)
            played[f"{way}/{episode}/observations"] = np.array(observations)
            played[f"{way}/{episode}/actions"] = np.array(actions)
            played[f"{way}/{episode}/rewards"] = np.array(rewards)
            played[f"{way}/{episode}/particles"] = np.array(particles)
            played[f"{way}/{episode}/seconds"] = np.array(seconds)
    np.savez(path, **played)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
