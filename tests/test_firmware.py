"""`examples/rotary/firmware.c`: a policy as a header, in the loop of a microcontroller.

It runs natively and, where a compiler for it and QEMU are installed, as a program of 32-bit ARM.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment, Network
from genkidama.protocol.vector import unflatten
from genkidama.runs.policy import Policy
from tests.helpers import ROOT, untrained

SOURCES = ROOT / "examples/rotary"
SOURCE_NAMES = ("firmware.c", "simulated.c", "robot.h")

#: Gains of the linear-quadratic regulator of these equations, at the numbers of an observation.
GAINS = (0.677, 2.599, 2.013, 3.647, -0.648)


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Policy:
    """A policy that balances: relu(x) − relu(−x) is x, and the output is the regulator's."""
    monkeypatch.syspath_prepend(str(SOURCES))
    experiment = Experiment(
        environment=Environment(id="rotary:RotaryPendulum", options={"seconds": 0.02}),
        network=Network(hidden=(10,), activation="relu"),
    )
    checkpoint = untrained(tmp_path / "run", experiment).load()
    parts = unflatten(checkpoint.vector, checkpoint.signature)
    parts["policy.0.weight"][:] = np.concatenate((np.eye(5), -np.eye(5)))
    parts["policy.2.weight"][:] = np.concatenate((GAINS, np.negative(GAINS)))
    return Policy(checkpoint, allow=["rotary"])


def balanced(policy: Policy) -> list[tuple[float, float]]:
    """Angles of arm and rod at each tick, in Python."""
    environment = policy.make_environment()
    environment.reset(seed=0)
    plain = environment.unwrapped
    plain._arm, plain._rod = 0.05, -0.08
    observation, over = plain._seen(), False
    seen = [(plain._arm, plain._rod)]
    while not over:
        action, _ = policy.predict(observation, deterministic=True)
        observation, _, fallen, over, _ = environment.step(action)
        assert not fallen
        seen.append((plain._arm, plain._rod))
    return seen


#: Compiler and emulator of each machine.
MACHINES = {
    "native": (("cc",), ()),
    "arm": (("arm-linux-gnueabihf-gcc", "-static"), ("qemu-arm-static",)),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_loop_balances_as_the_policy_does_in_python(
    policy: Policy, tmp_path: Path, machine: str
) -> None:
    compiler, emulator = MACHINES[machine]
    for name in (compiler[0], *emulator):
        if shutil.which(name) is None:
            pytest.skip(f"there is no {name}")
    for name in SOURCE_NAMES:
        shutil.copy(SOURCES / name, tmp_path)
    policy.to_c(tmp_path / "policy.h")
    strict = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
    command = (*compiler, *strict, "firmware.c", "simulated.c", "-lm", "-o", "firmware")
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(
        (*emulator, "./firmware"), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    ticks = np.array([line.split() for line in done.stdout.splitlines()], float)
    assert ticks[-1, 0] == 10.0
    assert np.abs(ticks[-50:, 2]).max() < 0.01
    assert np.allclose(ticks[:, 1:3], balanced(policy), atol=1e-4)
