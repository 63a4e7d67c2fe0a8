"""The promises of `genkidama.server.rules.blend.Rule`, as one test of any rule: call
`check_rule`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.protocol.messages import PROTOCOL, Hello, Join, Push, Refusal, Weights
from genkidama.protocol.vector import DTYPE, STATISTICS, Vector, length
from genkidama.server.parameter_server import ParameterServer
from genkidama.server.rules.blend import Rule, RuleState, Update
from genkidama.server.trial import SingleTrialRun

#: Far below the largest float32, so that a rule may add some of them.
_numbers = st.floats(-1e6, 1e6, width=32)

#: What a hostile child pushes: all that is finite, and often so much that sums overflow.
_LARGEST = float(np.finfo(DTYPE).max)
_hostile = st.sampled_from([1.0, -1.0, 1e6, 1e13, -3e14, 1e19, -1.8e38, _LARGEST]) | st.floats(
    -_LARGEST, _LARGEST, width=32
)


def contribution(
    vector: Vector, version: int = 0, staleness: int = 0, steps: int = 10, **more: Any
) -> Update:
    vector = vector.copy()
    vector.flags.writeable = False  # as that of a decoded message is
    return Update(vector, version, staleness, steps, **{"child": "pi", **more})


@st.composite
def pushes(draw: st.DrawFn) -> list[Update]:
    """Two to eight pushes of up to three children, as a parent hands them to its rule."""
    size = draw(st.integers(1, 8))
    statistics = draw(st.integers(0, size - 1))
    some = draw(st.lists(_numbers, min_size=1, max_size=6))
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))

    def number() -> float:
        return rng.choice([rng.choice(some), rng.uniform(-1.0, 1.0) * 10.0 ** rng.randint(-3, 6)])

    seconds = 0.0
    found = []
    for version in range(draw(st.integers(2, 8))):
        vector = np.array([number() for _ in range(size)], DTYPE)
        seconds += rng.choice([0.0, rng.random(), 1.0])
        found.append(
            contribution(
                vector,
                version,
                staleness=rng.randint(0, 5),
                steps=rng.choice([0, 1, rng.randint(0, 1000)]),
                child=rng.choice(["pi", "pi-2", "node.3"]),
                children=rng.randint(1, 3),
                seconds=seconds,
                progress=min(1.0, seconds / 4.0),
                loss=rng.choice([None, number()]),
                statistics=statistics,
                length=length(vector[: size - statistics]),
            )
        )
    return found


def check_rule(
    make: Callable[[float], Rule], alphas: Sequence[float] = (0.0, 0.25, 0.9, 1.0)
) -> None:
    """Fails if the rules that `make` gives for an alpha break a promise that every rule makes.

    A parent with this rule then meets children that push any finite vector. Whatever they push, it
    stays finite, and what it refuses has changed nothing.
    """

    @settings(deadline=None)
    @given(pushes(), st.sampled_from(alphas), st.integers(0, 8))
    def keeps_its_promises(brought: list[Update], alpha: float, restart: int) -> None:
        start = np.linspace(-1.0, 1.0, len(brought[0].vector), dtype=DTYPE)
        rule = make(alpha)
        whole = apply_all(rule, start, brought)
        assert np.isfinite(whole).all()

        # An equal rule makes the same of the same, restarted or not.
        first, second = make(alpha), make(alpha)
        begun = apply_all(first, start, brought[:restart])
        second.restore(copied(first.state()))
        assert apply_all(second, begun, brought[restart:]).tobytes() == whole.tobytes()
        assert_equal_states(second.state(), rule.state())
        if alpha == 0.0:
            # Statistics of a rule that takes no weights are mixed whatever α is.
            trained = len(start) - brought[0].statistics * (rule.takes != "weights")
            assert whole[:trained].tobytes() == start[:trained].tobytes()

    @settings(deadline=None)
    @given(
        st.lists(_hostile, min_size=1, max_size=8),
        st.integers(0, 12),
        st.integers(0, 2**32 - 1),
        st.sampled_from(alphas),
        st.integers(1, 4),
        st.integers(0, 1),
    )
    def survives(
        some: list[float], count: int, seed: int, alpha: float, size: int, tail: int
    ) -> None:
        rng = random.Random(seed)
        server = parent_with(make(alpha), size, tail)
        for number in range(2, 2 + count):
            check_push(server, np.array(rng.choices(some, k=size + tail), DTYPE), number)

    keeps_its_promises()
    survives()
    _check_start(make(alphas[-1]))


def parent_with(rule: Rule, size: int, tail: int = 0) -> ParameterServer:
    """A parent with this rule, whose child "pi" has joined and pushed ones.

    Args:
        size: numbers that are trained.
        tail: numbers of running statistics.
    """
    experiment = Experiment()
    server = ParameterServer(experiment, trials=SingleTrialRun(experiment, rule))
    server.handle("pi", Hello(protocol=PROTOCOL, name="pi", session="1"), 0.0)
    entries: list[tuple[str, list[int]]] = [("weights", [size])]
    if tail:
        entries.append((STATISTICS[0], [tail]))
    server.handle("pi", Join(signature=entries), 0.0)
    push = Push(version=0, sequence=1, steps=10, vector=np.ones(size + tail, DTYPE))
    assert isinstance(server.handle("pi", push, 0.0), Weights)
    return server


def check_push(server: ParameterServer, vector: Vector, number: int) -> bool:
    """Lets "pi" push a finite vector; whether the parent takes it. Fails as `check_rule` says."""
    trial, rule = server.trial, server.trials.rule
    assert trial.vector is not None
    before = trial.vector.copy(), copied(rule.state())
    kind = rule.takes
    push = Push(version=trial.version, sequence=number, steps=10, kind=kind, vector=vector)
    reply = server.handle("pi", push, float(number))
    assert np.isfinite(trial.vector).all()
    assert all(np.isfinite(array).all() for array in rule.state().values())
    if isinstance(reply, Weights):
        return True
    assert isinstance(reply, Refusal)
    assert (reply.code, reply.final) == ("finite", False)
    assert trial.vector.tobytes() == before[0].tobytes()
    assert_equal_states(rule.state(), before[1])
    return False


def apply_all(rule: Rule, start: Vector, pushes: Sequence[Update]) -> Vector:
    """What becomes of a copy of `start`; fails if the rule writes anywhere else."""
    parent = start.copy()
    place = parent.ctypes.data
    for push in pushes:
        before = push.vector.tobytes(), parent.copy()
        rule.apply(parent, push)
        assert push.vector.tobytes() == before[0]
        trained = len(parent) - push.statistics
        step = (parent - before[1])[:trained]
        rounding = 1e-6 * (length(parent[:trained]) + length(before[1][:trained]))
        assert length(step) <= 1.001 * rule.moved() + rounding
        assert (parent.ctypes.data, parent.dtype) == (place, DTYPE)
        for array in rule.state().values():
            assert array.dtype in (np.float32, np.float64)
            assert not np.shares_memory(array, parent)
            assert not np.shares_memory(array, push.vector)
    return parent


def copied(state: RuleState) -> RuleState:
    return {name: array.copy() for name, array in state.items()}


def assert_equal_states(one: RuleState, other: RuleState) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert (array.dtype, array.shape) == (other[name].dtype, other[name].shape)
        assert array.tobytes() == other[name].tobytes()


def _check_start(rule: Rule) -> None:
    push = contribution(np.ones(3, DTYPE))
    begun = rule.start(push)
    if begun is not None:
        assert begun.dtype == DTYPE
        assert begun.shape == (3,)
        assert begun.flags.writeable
        assert not np.shares_memory(begun, push.vector)
