"""The learner's process: `genkidama.plugins.actors.learner_process` starts it and talks to it
through a socket.

It is a separate program, or forked from a forkserver that has imported all of it.

It receives the experiment, answers with a description of its network, and receives the shared
memory. Then it learns from each batch, until the socket ends with the parent.
"""

from __future__ import annotations

import signal
import sys
import traceback
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.learning.environments import make_environment
from genkidama.plugins.actors.learner import RowLearner
from genkidama.plugins.actors.learner_process import LearnerLayout, LearnerMemory
from genkidama.runtime.import_strings import describe_error, print_user_traceback
from genkidama.runtime.machine import end_with_parent, keep_large_blocks

#: Characters of an error's text that are sent.
_LONGEST_REASON = 1000


def _describe(learning: RowLearner) -> tuple[Any, ...]:
    """The answer to the experiment: "ok", the signature's entries, the vector, the shape of the
    optimizer's state, and a row's columns."""
    model = learning.model
    return (
        "ok",
        model.signature.entries,
        model.numbers.tobytes(),
        learning.state.shape,
        learning.columns,
    )


def _serve(learning: RowLearner, memory: LearnerMemory, control: Connection) -> None:
    """Learns from one batch after another until the socket ends, which raises an EOFError."""
    learning.model.numbers[:] = memory.weights
    learning.state[:] = memory.state
    learning.clock[:] = memory.clock
    while True:
        count, progress = control.recv()
        for _ in learning.learn(memory.rows[:count].copy(), progress):
            memory.beat[0] += 1
            if control.poll():  # the parent sends nothing meanwhile: the socket has ended
                raise EOFError
        memory.weights[:] = learning.model.numbers
        memory.state[:] = learning.state
        memory.clock[:] = learning.clock
        control.send(("learned", learning.figures))


def run_forked(control: Connection) -> NoReturn:
    """The life of a learner's process that was forked."""
    keep_large_blocks()  # forkservers are set up for cores, whose blocks are small
    sys.exit(main(control))


def main(control: Connection) -> int:
    """The life of a learner's process; returns its exit code."""
    # The parent decides what ends when, and its end of the socket says so.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        try:
            experiment = Experiment.from_dict(control.recv())
            environment = make_environment(experiment.environment)
            environment.close()  # only its spaces are needed
            learning = RowLearner(experiment, environment)
        except ConfigurationError as error:
            print_user_traceback(error)
            control.send(("error", str(error)))
            return 1
        control.send(_describe(learning))
        layout: LearnerLayout = control.recv()
        memory = LearnerMemory(layout, reduction.recv_handle(control))
        try:
            _serve(learning, memory, control)
        except (EOFError, OSError):
            raise
        except Exception as error:  # a network or learner of the user's own may raise anything
            traceback.print_exc()
            control.send(("failed", describe_error(error)[:_LONGEST_REASON]))
            return 1
    except (EOFError, OSError):
        pass  # the parent is gone, or needs no learner any more
    return 0


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(Connection(int(sys.argv[1]))))
