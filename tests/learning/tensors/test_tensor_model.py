"""What a process with tensors finds out before it is forked."""

from __future__ import annotations

import os

from genkidama.learning.tensors.tensor_model import survives_a_fork


def test_what_can_be_done_again_after_a_fork_is_told_from_what_cannot() -> None:
    done: list[int] = []

    def threaded() -> None:  # as a torch whose threads no fork inherits
        if done:
            raise RuntimeError(f"cannot go on in {os.getpid()}")
        done.append(os.getpid())

    assert not survives_a_fork(threaded)
    assert done == []  # this process has done nothing
    assert survives_a_fork(os.getpid)


def test_a_work_that_fails_at_once_survives_nothing() -> None:
    assert not survives_a_fork(lambda: 1 / 0)
