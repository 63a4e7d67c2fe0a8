"""Environments that own something: a thread, a process, a signal, a device."""

from __future__ import annotations

import atexit
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

#: A program that outlives whoever does not end it, and hears no SIGTERM.
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"


class Owning(gymnasium.Env[Any, Any]):
    """Random observations, 1 a step, 20 steps.

    Args:
        owns: names of what it starts, and does not end.
        notes: the file to which it adds a line whenever it is built.
        seconds: how long it takes to be built.
    """

    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, owns: str = "", notes: str = "", seconds: float = 0.0) -> None:
        time.sleep(seconds)
        if notes:
            with open(notes, "a") as file:
                print(os.getpid(), file=file)
        for each in owns.split():
            getattr(self, f"own_{each}")()

    def own_thread(self) -> None:
        threading.Thread(target=time.sleep, args=(3600,)).start()

    def own_pool(self) -> None:
        self.pool = ThreadPoolExecutor()
        self.pool.submit(time.sleep, 3600)

    def own_fork(self) -> None:
        """A process that multiprocessing would wait for."""
        fork = multiprocessing.get_context("fork")
        fork.Process(target=time.sleep, args=(3600,)).start()

    def own_program(self) -> None:
        """One that inherits standard output."""
        self.program = subprocess.Popen([sys.executable, "-c", DEAF])

    def own_daemon(self) -> None:
        """One of init's, in a session of its own, without variables of ours."""
        subprocess.run("setsid sleep 3600 &", shell=True, env={"PATH": os.environ["PATH"]})

    def own_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        atexit.register(time.sleep, 3600)
        os.chdir("/")
        os.umask(0o777)

    def own_device(self) -> None:
        self.device = os.open("device.lock", os.O_CREAT | os.O_WRONLY)
        fcntl.flock(self.device, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.observation_space.sample(), 1.0, False, self.t >= 20, {}

    def close(self) -> None:
        if hasattr(self, "device"):
            os.close(self.device)
            del self.device


class Exiting(Owning):
    """Ends its process in the fifth step."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.by = by

    def step(self, action: Any) -> Any:
        if self.t == 5:
            {"sys": sys.exit, "os": os._exit}[self.by](3)
        return super().step(action)


class Watched(CartPoleEnv):
    """Notes each time that it is built, waits in each step, and may refuse a second one."""

    def __init__(self, notes: str, alone: bool = False, pace: float = 0.0) -> None:
        super().__init__()
        self.pace = pace
        self.notes = os.open(notes, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(self.notes, f"{os.getpid()}\n".encode())
        if alone:
            fcntl.flock(self.notes, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def step(self, action: Any) -> Any:
        time.sleep(self.pace)
        return super().step(action)

    def close(self) -> None:
        os.close(self.notes)
