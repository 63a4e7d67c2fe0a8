"""A device with a loop of its own asks for actions, over a real socket."""

from __future__ import annotations

import json
import socket
import struct
import threading
from typing import Any

import numpy as np
import pytest

from genkidama.config.sections import Environment, Wrapper
from genkidama.errors import ConfigurationError
from genkidama.learning.environments import make_environment
from genkidama.protocol.diagnostics import CYCLE_COUNTS

NAME = "genkidama.learning.device:Device"


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


class Firmware:
    """The device's side: what docs/robot.md shows."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        while True:
            try:
                self.line = socket.create_connection((host, int(port)), 20.0)
                break
            except ConnectionRefusedError:  # the core is not there yet
                threading.Event().wait(0.01)
        self.file = self.line.makefile("rw")

    def act(self, observation: Any, **more: Any) -> Any:
        return self.ask({"observation": observation, **more})

    def ask(self, message: Any) -> Any:
        self.file.write(json.dumps(message) + "\n")
        self.file.flush()
        return json.loads(self.file.readline())

    def close(self) -> None:
        self.file.close()
        self.line.close()


def made(address: str, actions: Any = 3) -> Any:
    options = {"observations": 2, "actions": actions, "listen": address}
    return make_environment(Environment(id=NAME, options=options, period=0.01))


def test_a_device_plays_episodes_and_may_vanish() -> None:
    environment = made(address := free_address())
    counts = np.zeros(CYCLE_COUNTS, np.int64)
    environment.report(counts, np.zeros(1), np.zeros(1, np.bool_))
    heard: list[Any] = []

    def device() -> None:
        one = Firmware(address)
        heard.append(one.act([0.0, 1.0]))
        heard.append(one.act([0.5, 1.0], reward=2.5))
        heard.append(one.act([9.0, 1.0], reward=-1.0, terminated=True))
        heard.append(one.act([0.25, 0.0]))
        one.close()
        other = Firmware(address)
        heard.append(other.act([0.75, 0.0]))
        heard.append(other.ask({"observation": [1.0]}))
        other.close()

    thread = threading.Thread(target=device)
    thread.start()
    assert environment.reset(seed=0)[0].tolist() == [0.0, 1.0]
    observation, *result, _ = environment.step(1)
    assert observation.tolist() == [0.5, 1.0] and result == [2.5, False, False]
    observation, *result, _ = environment.step(2)
    assert observation.tolist() == [9.0, 1.0] and result == [-1.0, True, False]
    assert environment.reset()[0].tolist() == [0.25, 0.0]
    assert environment.step(0)[1:4] == (0.0, False, True)  # it is gone
    assert environment.reset()[0].tolist() == [0.75, 0.0]
    assert environment.step(0)[1:4] == (0.0, False, True)  # and this one makes no sense
    thread.join(20.0)
    actions = [1, 2, None, 0, 0]
    assert heard[:-1] == [{"action": action} for action in actions]
    assert heard[-1]["error"].startswith("ValueError: expected 2 finite numbers")
    assert counts[:-2].sum() == 4
    environment.close()


def test_a_time_limit_begins_the_next_episode_where_the_device_waits() -> None:
    options = {"observations": 2, "actions": 3, "listen": (address := free_address())}
    limit = Wrapper(name="TimeLimit", options={"max_episode_steps": 2})
    settings = Environment(id=NAME, options=options, period=0.01, wrappers=(limit,))
    environment = make_environment(settings)
    heard: list[Any] = []

    def device() -> None:
        firmware = Firmware(address)
        heard.extend(firmware.act([float(number), 0.0]) for number in range(4))
        firmware.close()

    thread = threading.Thread(target=device)
    thread.start()
    assert environment.reset()[0].tolist() == [0.0, 0.0]
    assert [environment.step(1)[3], environment.step(2)[3]] == [False, True]
    assert environment.reset()[0].tolist() == [2.0, 0.0]
    assert environment.step(0)[0].tolist() == [3.0, 0.0]
    environment.step(1)
    thread.join(20.0)
    environment.close()
    assert heard == [{"action": action} for action in (1, 2, 0, 1)]


def test_a_device_that_vanishes_while_the_policy_decides_truncates_its_episode() -> None:
    environment = made(address := free_address())
    decides, gone = threading.Event(), threading.Event()

    def device() -> None:
        one = Firmware(address)
        one.file.write('{"observation": [0.0, 1.0]}\n')
        one.file.flush()
        decides.wait(20.0)
        one.line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()  # with a reset, as a device that starts again
        other = Firmware(address)
        other.file.write('{"observation": [0.75, 0.0]}\n')
        other.file.flush()
        gone.set()
        other.file.readline()
        other.close()

    thread = threading.Thread(target=device)
    thread.start()
    assert environment.reset()[0].tolist() == [0.0, 1.0]
    connection = environment.unwrapped._connection
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    decides.set()
    assert gone.wait(20.0)
    observation, *result, _ = environment.step(1)
    assert observation.tolist() == [0.0, 1.0] and result == [0.0, False, True]
    assert environment.reset()[0].tolist() == [0.75, 0.0]
    environment.step(0)
    thread.join(20.0)
    environment.close()


@pytest.mark.parametrize("line", ['{"observation": [1' + 400 * "0" + ", 0]}", 100_000 * "["])
def test_a_message_that_makes_no_sense_is_answered_whatever_it_is(line: str) -> None:
    environment = made(address := free_address())
    heard: list[Any] = []

    def device() -> None:
        one = Firmware(address)
        one.file.write(line + "\n")
        one.file.flush()
        heard.append(json.loads(one.file.readline()))
        one.close()
        other = Firmware(address)
        heard.append(other.act([0.5, 0.0]))
        other.close()

    thread = threading.Thread(target=device)
    thread.start()
    assert environment.reset()[0].tolist() == [0.5, 0.0]
    environment.step(2)
    thread.join(20.0)
    assert "Error: " in heard[0]["error"] and heard[1] == {"action": 2}
    environment.close()


def test_numbers_of_an_action_have_bounds() -> None:
    environment = made(free_address(), [[-1.0, 1.0], [0.0, 5.0]])
    assert environment.action_space.low.tolist() == [-1.0, 0.0]
    assert environment.action_space.high.tolist() == [1.0, 5.0]


def test_a_device_needs_a_period() -> None:
    settings = Environment(id=NAME, options={"observations": 2, "actions": 2})
    with pytest.raises(ConfigurationError, match=r"period = 0: .*Device' cannot be paused"):
        make_environment(settings)
