"""The engine: its threads on shared memory. `test_backend.py` has its process."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from genkidama.config.experiment import Experiment
from genkidama.config.schedules import learning_rate
from genkidama.config.sections import Algorithm
from genkidama.errors import ConfigurationError
from genkidama.learning.a3c import A3C
from genkidama.learning.heads import Gaussian
from genkidama.learning.learners import make_learner, updates
from genkidama.learning.model import Model
from genkidama.learning.optimizers import STATE_ROWS, make_optimizer
from genkidama.learning.perceptron import Perceptron
from genkidama.learning.rollout import Rollout
from genkidama.learning.tensors.tensor_model import TensorModel
from genkidama.plugins.ga3c import engine
from genkidama.plugins.ga3c.engine import Engine, Predictor, Trainer
from genkidama.plugins.ga3c.slots import LEAVE, Count, SlotLayout, Slots, pipe, put, waiting
from tests.helpers import PATIENCE, merged, until

Array = npt.NDArray[Any]

#: Rates and rewards are large: an update moves the numbers by more than the last digits, in which
#: sums of another order differ.
RATE = 0.05


def experiment(
    name: str = "Bandit", options: dict[str, Any] | None = None, **sections: dict[str, Any]
) -> Experiment:
    """A tiny network, and sums over the steps; sections are merged key by key."""
    settings: dict[str, Any] = {
        "environment": {"id": f"tests.environments:{name}", "options": options or {}},
        "network": {"hidden": [6]},
        "algorithm": {"name": "a3c", "gamma": 0.9, "batch_size": 4, "reduction": "sum"},
        "optimizer": {"name": "sgd", "learning_rate": RATE},
        "child": {"backend": "ga3c", "exchange": "free"},
        "ga3c": {"rollouts": 4, "device": "cpu"},
    }
    return merged(settings, **sections)


class Bench:
    """An engine in this process, and the ends of so many agents."""

    def __init__(self, settings: Experiment, agents: int = 8) -> None:
        self.experiment = settings
        self.control, self.theirs = multiprocessing.Pipe()
        self.engine = Engine(settings, self.theirs)
        self.spaces = self.engine.spaces
        #: A model of the test's own.
        self.model = TensorModel(settings, self.spaces)
        facts = self.engine.description()[3]
        self.slots = slots = Slots(
            SlotLayout(
                agents=agents,
                environments=settings.ga3c.environments,
                rollouts=settings.ga3c.rollouts,
                steps=settings.algorithm.batch_size,
                size=self.model.signature.size,
                threads=16,
                **facts,
            )
        )
        rng = np.random.default_rng(0)
        slots.weights[: self.model.trainable] = rng.normal(0.0, 0.5, self.model.trainable)
        self.predictions, self.training = pipe(), pipe()
        self.bells = [pipe() for _ in range(agents)]
        ends = (*self.predictions, *self.training, *(bell for _, bell in self.bells))
        self.engine.attach(slots, [end.fileno() for end in ends])
        self.failures: list[Exception] = []
        self.threads: list[Predictor | Trainer] = []

    def start(self, *kinds: type[Predictor] | type[Trainer]) -> None:
        """Starts threads, the n-th with row n of the counters; none of their errors is sent."""
        self.engine.thread_failed = self.failures.append  # type: ignore[method-assign]
        for kind in kinds:
            row = len(self.threads)
            self.threads.append(kind(self.engine, row, (1, 2, 3, row)))
            self.threads[-1].start()

    def end(self) -> None:
        """Has all threads leave after what is in their queues."""
        at_work = [thread for thread in self.threads if thread.is_alive()]
        for thread in at_work:
            put(
                self.engine.predictions_in
                if isinstance(thread, Predictor)
                else self.engine.training_in,
                (LEAVE,),
            )
        for thread in at_work:
            thread.join(PATIENCE)
            assert not thread.is_alive(), f"{thread} has not left"

    def living(self, kind: type[Predictor] | type[Trainer]) -> list[int]:
        """The rows of this bench's threads of this kind that live."""
        return [
            thread.row
            for thread in threading.enumerate()
            if isinstance(thread, kind) and thread._engine is self.engine
        ]

    def use(self) -> None:
        """A prediction and an update."""
        before = self.slots.counters.sum(0)
        self.slots.asked[1] += 1
        put(self.engine.predictions_in, (1,))
        self.slots.lengths[4], self.slots.busy[4] = 2, True
        put(self.engine.training_in, (4,))

        def done() -> bool:
            counts = (self.slots.counters.sum(0) - before)[[Count.PREDICTIONS, Count.UPDATES]]
            return bool(counts.tolist() == [1, 1])

        until(done)

    def close(self) -> None:
        self.end()
        self.engine.resize(0, 0)
        until(lambda: not self.living(Predictor) and not self.living(Trainer))
        bells = (end for bell in self.bells for end in bell)
        for end in (*self.predictions, *self.training, *bells, self.control, self.theirs):
            end.close()
        self.slots.close()

    def count(self, what: Count) -> int:
        return int(self.slots.counters[:, what].sum())

    def rung(self, agent: int) -> int:
        """How often its bell has rung since the last look."""
        end = self.bells[agent][0]
        return len(os.read(end.fileno(), 4096)) if end.poll() else 0

    # Predictions.

    def ask(self, lanes: Sequence[int], seen: Array) -> None:
        """Has observations predicted, each at the first row of its lane; sleeps as agents do."""
        self.question(
            lanes,
            seen,
            [lane * self.slots.layout.rollouts * self.slots.layout.steps for lane in lanes],
        )
        for lane in lanes:
            while self.slots.answered[lane] != self.slots.asked[lane]:
                bell = self.bells[lane // self.slots.layout.environments][0]
                assert bell.poll(PATIENCE), "no answer"
                os.read(bell.fileno(), 4096)

    def question(self, lanes: Sequence[int], seen: Array, rows: Sequence[int]) -> None:
        """Asks for predictions at these rows."""
        slots = self.slots
        slots.observations[rows] = seen
        slots.position[lanes] = rows
        slots.asked[lanes] += 1
        put(self.engine.predictions_in, lanes)

    # Rollouts.

    def fill(self, slot: int, steps: Steps) -> None:
        """Puts a rollout into a slot, as an agent and a predictor do."""
        slots = self.slots
        assert not slots.busy[slot]
        start = slot * slots.layout.steps
        rows = slice(start, start + len(steps.rewards))
        slots.observations[rows], slots.actions[rows], slots.rewards[rows] = (
            steps.observations,
            steps.actions,
            steps.rewards,
        )
        slots.discounted[rows], slots.log_mu[rows], slots.born[rows] = (
            steps.discounted,
            steps.log_mu,
            steps.born,
        )
        # What lies behind a shorter rollout is none of it.
        behind = slice(rows.stop, start + slots.layout.steps)
        (
            slots.observations[behind],
            slots.rewards[behind],
            slots.discounted[behind],
            slots.born[behind],
        ) = 99.0, 99.0, 99.0, -99
        slots.lengths[slot], slots.cut[slot] = len(steps.rewards), steps.cut
        slots.bootstraps[slot] = steps.bootstrap
        slots.busy[slot] = True

    def submit(self, rollouts: Sequence[Steps]) -> None:
        """Puts rollouts into the first slots and the slots into the training queue."""
        for slot, steps in enumerate(rollouts):
            self.fill(slot, steps)
        put(self.engine.training_in, range(len(rollouts)))


@contextmanager
def at_work(settings: Experiment, agents: int = 8) -> Iterator[Bench]:
    """A bench whose threads have all left at the end.

    None of them leaves by an error that the test has not looked at.
    """
    bench = Bench(settings, agents)
    try:
        yield bench
    finally:
        bench.close()
    assert not bench.failures


# What must come of it.


@dataclass
class Steps:
    """A rollout of n steps as a person would note it."""

    #: (n, …), (n, columns) and (n,).
    observations: Array
    actions: Array
    rewards: Array
    #: Discounted returns of the episode so far.
    discounted: Array
    log_mu: Array
    #: Updates when each was predicted.
    born: list[int]
    cut: bool
    #: V of what follows; what stands there without a cut does not count.
    bootstrap: float


def steps(n: int, seed: int = 0, cut: bool = True, continuous: bool = False, **given: Any) -> Steps:
    """Random ones, but for what is given."""
    rng = np.random.default_rng((n, seed))
    return replace(
        Steps(
            observations=rng.normal(size=(n, 1 if continuous else 3)).astype(np.float32),
            actions=rng.normal(size=(n, 1)).astype(np.float32)
            if continuous
            else rng.integers(3, size=(n, 1)).astype(np.float32),
            rewards=rng.normal(size=n).astype(np.float32),
            discounted=rng.normal(size=n).astype(np.float32),
            log_mu=np.log(rng.uniform(0.1, 0.9, size=n)).astype(np.float32),
            born=[0] * n,
            cut=cut,
            bootstrap=float(np.float32(rng.normal())),
        ),
        **given,
    )


class Oracle:
    """The learner's own updates from rollouts as a person would put them together.

    What a learner makes of a rollout is tested in `tests/learning/`.
    """

    def __init__(self, bench: Bench) -> None:
        self.settings = bench.experiment
        self.model = TensorModel(bench.experiment, bench.spaces)
        self.model.numbers[:] = bench.slots.weights
        self.weights = self.model.numbers

    def update(self, rollouts: list[Steps], progress: float = 0.0) -> None:
        """The step of the weights that all of these make together."""
        settings, model = self.settings, self.model

        def joined(name: str) -> Array:
            return np.concatenate([getattr(rollout, name) for rollout in rollouts])

        seen = joined("observations")
        if (normalize := model.normalizer()) is not None:
            raw, seen = seen, normalize(seen)
            moments = model.moments("observations")
            assert moments is not None
            moments.add(raw)
        if (returns := model.moments("returns")) is not None:
            returns.add(joined("discounted")[:, None])
        last = np.cumsum([len(rollout.rewards) for rollout in rollouts]) - 1
        cut = np.array([rollout.cut for rollout in rollouts])
        rollout = Rollout(
            model.native(seen).float(),
            model.native(joined("actions").astype(model.head.dtype)),
            model.scaled(joined("rewards")),
            np.isin(np.arange(last[-1] + 1), last),
            last[cut],
            model.native(np.empty((0, *seen.shape[1:]), np.float32)),
            cut_values=np.array([each.bootstrap for each in rollouts if each.cut], np.float32),
            log_mu=joined("log_mu"),
            progress=progress,
        )
        state = np.zeros((STATE_ROWS[settings.optimizer.name], model.trainable), np.float32)
        optimizer = make_optimizer(
            settings.optimizer, model.vector[: model.trainable], state, np.zeros(1)
        )
        found = model.gradients(make_learner(settings.algorithm, model), rollout, None)
        rate = learning_rate(settings.optimizer, progress)
        list(updates(found, model, optimizer, rate))


def learn(bench: Bench, rollouts: Sequence[Steps], progress: float = 0.0) -> Oracle:
    """Has one trainer learn from all of these and leave, and compares the outcome with an oracle.

    Returns the oracle.
    """
    least = max(1, bench.experiment.ga3c.training_batch)
    oracle, before = Oracle(bench), bench.slots.weights.copy()
    bench.slots.progress[0] = progress
    bench.submit(rollouts)
    bench.start(Trainer)
    bench.end()
    groups: list[list[Steps]] = [[]]
    for rollout in rollouts:
        if sum(len(other.rewards) for other in groups[-1]) >= least:
            groups.append([])
        groups[-1].append(rollout)
    for group in groups:
        oracle.update(group, progress)
    assert not bench.slots.busy.any()
    assert [bench.count(what) for what in (Count.ROLLOUTS, Count.STEPS, Count.UPDATES)] == [
        len(rollouts),
        sum(len(rollout.rewards) for rollout in rollouts),
        len(groups),
    ]
    change, expected = bench.slots.weights - before, oracle.weights - before
    np.testing.assert_allclose(
        change, expected, rtol=1e-3, atol=1e-5 * max(1.0, np.abs(expected).max())
    )
    assert np.abs(expected[: bench.model.trainable]).max() > 1e-3
    return oracle


def observations(count: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)


def outputs_and_values(bench: Bench, seen: Array) -> tuple[Tensor, Tensor]:
    """What the network says of observations with the weights as they are now, one by one."""
    bench.model.vector[:] = bench.slots.weights
    with torch.no_grad():
        said = [
            bench.model.network(torch.from_numpy(observation[None]).float()) for observation in seen
        ]
    return torch.cat([outputs for outputs, _ in said]), torch.cat([values for _, values in said])


def decide(bench: Bench, logits: Sequence[float]) -> None:
    """Gives the network's policy these outputs, whatever it sees."""
    part = bench.model.signature.slices
    bench.slots.weights[part["policy.2.weight"]] = 0.0
    bench.slots.weights[part["policy.2.bias"]] = logits


# Predictors.


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no niceness of their own")
def test_a_predictor_of_a_child_that_is_nice_is_as_nice_as_can_be() -> None:
    with at_work(experiment()) as bench:

        def start() -> None:
            me = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, me, max(12, os.getpriority(os.PRIO_PROCESS, me)))
            bench.start(Predictor)

        starter = threading.Thread(target=start)
        starter.start()
        starter.join()
        (predictor,) = bench.threads
        assert predictor.native_id is not None
        thread = predictor.native_id
        until(lambda: os.getpriority(os.PRIO_PROCESS, thread) == 19)
        bench.end()
        assert not bench.failures


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_answers_are_what_the_network_says_of_these_observations(dtype: str) -> None:
    with at_work(experiment(options={"dtype": dtype}, ga3c={"environments": 2})) as bench:
        slots = bench.slots
        lanes, seen = (
            [9, 2, 3, 14],
            observations(4) if dtype == "float32" else np.arange(12, dtype=np.uint8).reshape(4, 3),
        )
        rows = [9 * 16 + 5, 2 * 16, 3 * 16 + 15, 14 * 16 + 1]
        slots.counters[5, Count.UPDATES] = 2**40 + 17
        decide(bench, [0.0, 0.0, 1e4])
        bench.question(lanes, seen, rows)
        bench.start(Predictor)
        bench.end()
        np.testing.assert_allclose(
            slots.values[rows], outputs_and_values(bench, seen)[1], rtol=1e-4
        )
        assert slots.actions[rows].tolist() == [[2.0]] * 4
        assert slots.born[rows].tolist() == [2**40 + 17] * 4
        assert not slots.log_mu.any()  # nobody needs it
        # Nothing else was touched.
        others = np.setdiff1d(np.arange(len(slots.values)), rows)
        assert not any(
            part[others].any()
            for part in (slots.actions, slots.values, slots.born, slots.observations)
        )
        assert (
            slots.answered[lanes].tolist() == [1] * 4 and not np.delete(slots.answered, lanes).any()
        )
        assert (bench.count(Count.PREDICTIONS), slots.counters[0, Count.PREDICTIONS]) == (4, 4)
        # Two lanes are an agent's: 2 and 3 belong to 1, 9 to 4, 14 to 7.
        assert [agent for agent in range(8) if bench.rung(agent)] == [1, 4, 7]


def test_actions_are_distributed_as_the_policy_and_their_probabilities_are_noted() -> None:
    with at_work(experiment(algorithm={"vtrace": True}), agents=256) as bench:
        logits = np.array([1.0, -0.5, 0.2])
        log_pi = logits - np.log(np.exp(logits).sum())
        decide(bench, logits.tolist())
        bench.start(Predictor, Predictor)
        lanes, rows = range(256), [lane * 16 for lane in range(256)]
        taken: list[int] = []
        for _ in range(16):
            bench.ask(lanes, observations(256))
            actions = bench.slots.actions[rows, 0].astype(int)
            np.testing.assert_allclose(bench.slots.log_mu[rows], log_pi[actions], rtol=1e-5)
            taken += actions.tolist()
        expected = np.exp(log_pi) * len(taken)
        # Five standard deviations of a binomial distribution.
        assert (
            np.abs(np.bincount(taken, minlength=3) - expected)
            < 5 * np.sqrt(expected * (1 - np.exp(log_pi)))
        ).all()


def test_with_epsilon_some_actions_are_uniformly_random() -> None:
    with at_work(experiment(algorithm={"epsilon": 0.5}), agents=512) as bench:
        decide(bench, [0.0, 0.0, 1e4])
        bench.start(Predictor)
        bench.ask(range(512), observations(512))
        counts = (
            np.bincount(
                bench.slots.actions[[lane * 16 for lane in range(512)], 0].astype(int), minlength=3
            )
            / 512
        )
        assert np.abs(counts - [1 / 6, 1 / 6, 2 / 3]).max() < 0.11


def test_epsilon_follows_the_run() -> None:
    course = {"epsilon": 1.0, "epsilon_schedule": "linear", "final_epsilon": 0.0}
    with at_work(experiment(algorithm=course), agents=64) as bench:
        decide(bench, [0.0, 0.0, 1e4])
        bench.slots.progress[0] = 1.0
        bench.start(Predictor)
        bench.ask(range(64), observations(64))
        assert set(bench.slots.actions[[lane * 16 for lane in range(64)], 0].tolist()) == {2.0}


def test_a_prediction_takes_what_is_there_but_no_more_than_its_most() -> None:
    with at_work(experiment(ga3c={"prediction_batch": 4}), agents=10) as bench:
        bench.question(range(10), observations(10), range(0, 160, 16))
        bench.start(Predictor)
        bench.end()
        assert bench.slots.answered.tolist() == [1] * 10
        assert (bench.count(Count.PREDICTIONS), bench.count(Count.PREDICTION_BATCHES)) == (10, 3)
        bench.start(Predictor)
        for lane in (3, 7):
            bench.ask([lane], observations(1))
        bench.end()
        assert bench.slots.counters[:, Count.PREDICTION_BATCHES].tolist()[:2] == [3, 2]


def test_a_question_that_is_there_twice_gets_one_answer() -> None:
    with at_work(experiment(algorithm={"vtrace": True})) as bench:
        decide(bench, [0.0, 1.0, 2.0])
        log_pi = torch.log_softmax(torch.tensor([0.0, 1.0, 2.0]), 0)
        for _ in range(20):
            bench.question([1], observations(1), [16])
            put(bench.engine.predictions_in, (1, 1))
            bench.start(Predictor)
            bench.end()
            bench.threads.clear()
            assert bench.slots.log_mu[16] == pytest.approx(
                float(log_pi[int(bench.slots.actions[16, 0])])
            )
        assert bench.slots.answered[1] == 20 and bench.count(Count.PREDICTION_BATCHES) == 20


def test_an_answer_that_was_given_stays_when_the_question_is_read_again() -> None:
    """An agent has asked before it died; that is read after the first question of its successor."""
    with at_work(experiment(algorithm={"vtrace": True})) as bench:
        bench.start(Predictor)
        bench.ask([1], observations(1))
        answer = (bench.slots.actions[16, 0], bench.slots.log_mu[16], bench.slots.born[16])
        bench.slots.counters[5, Count.UPDATES] = 3
        for _ in range(20):
            put(bench.engine.predictions_in, (1,))
            bench.ask([2], observations(1))  # which is answered after that
            assert (
                bench.slots.actions[16, 0],
                bench.slots.log_mu[16],
                bench.slots.born[16],
            ) == answer
        assert bench.slots.answered[1] == 1


def test_a_question_of_an_agent_that_is_gone_harms_nobody() -> None:
    with at_work(experiment()) as bench:
        bench.bells[1][0].close()
        bench.start(Predictor)
        # Read again: it has been answered, or its place is another's by now.
        put(bench.engine.predictions_in, (1,))
        bench.ask([2], observations(1))
        bench.question([1], observations(1), [16])
        bench.ask([2], observations(1))
        bench.end()
        assert bench.slots.answered.tolist() == [0, 1, 2, 0, 0, 0, 0, 0]


def test_observations_are_normalized_by_the_statistics_which_are_looked_at_now_and_then() -> None:
    with at_work(experiment(environment={"normalize_observations": True})) as bench:
        seen = observations(1)

        def set_statistics(mean: float, deviation: float) -> float:
            """The value by the new statistics."""
            part = bench.model.signature.slices["statistics.observations"]
            bench.slots.weights[part] = [
                10.0,
                *[10 * mean] * 3,
                *[10 * (deviation**2 + mean**2)] * 3,
            ]
            return float(
                outputs_and_values(bench, ((seen - mean) / deviation).astype(np.float32))[1]
            )

        def answer() -> float:
            bench.ask([1], seen)
            return float(bench.slots.values[16])

        before = set_statistics(0.5, 2.0)
        bench.start(Predictor)
        assert answer() == pytest.approx(before, rel=1e-4)
        after = set_statistics(-1.0, 0.5)
        answers = [answer() for _ in range(64)]
        assert answers[0] == pytest.approx(before, rel=1e-4) and answers[-1] == pytest.approx(
            after, rel=1e-4
        )
        assert abs(before - after) > 1e-2


# Trainers.


@settings(max_examples=60)
@given(
    rollouts=st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=6),
    longer=st.integers(0, 2),
    training_batch=st.integers(0, 12),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    reduction=st.sampled_from(["sum", "mean"]),
    entropy=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 3),
)
def test_an_update_is_the_gradient_of_the_documents_loss_of_n_step_returns(
    rollouts: list[tuple[int, bool]],
    longer: int,
    training_batch: int,
    gamma: float,
    reduction: str,
    entropy: float,
    seed: int,
) -> None:
    """Of one rollout or of several together, as long as a slot or shorter.

    They end with their episodes or before.
    """
    size = max(n for n, _ in rollouts) + longer
    algorithm = {
        "gamma": gamma,
        "batch_size": size,
        "reduction": reduction,
        "entropy_coefficient": entropy,
    }
    with at_work(experiment(algorithm=algorithm, ga3c={"training_batch": training_batch})) as bench:
        learn(
            bench,
            [steps(n, seed=seed + number, cut=cut) for number, (n, cut) in enumerate(rollouts)],
        )


def test_floats_as_actions_are_learned_from_as_they_were_drawn() -> None:
    with at_work(experiment("Endless", algorithm={"entropy_coefficient": 0.1})) as bench:
        learn(bench, [steps(4, continuous=True), steps(2, continuous=True, cut=False)])


@pytest.mark.parametrize(
    "sections",
    [
        {
            "environment": {
                "normalize_rewards": True,
                "normalize_observations": True,
                "reward_scale": 2.0,
                "clip_rewards": 1.0,
            }
        },
        {"algorithm": {"max_gradient_norm": 0.5}},
        {"algorithm": {"vtrace": True, "vtrace_rho": 0.7}},
        {
            "algorithm": {
                "entropy_coefficient": 0.5,
                "entropy_schedule": "linear",
                "final_entropy_coefficient": 0.1,
            },
            "optimizer": {"schedule": "linear", "final_learning_rate": RATE / 5},
        },
    ],
    ids=str,
)
def test_updates_follow_the_settings(sections: dict[str, dict[str, Any]]) -> None:
    """The statistics are of all that was learned from so far.

    Observations count from the next update on, returns at once.
    """
    with at_work(experiment(**sections, ga3c={"training_batch": 5})) as bench:
        learn(bench, [steps(n, seed=n, cut=n % 2 == 0) for n in (4, 3, 4, 1, 2, 4)], 0.25)


def test_each_step_counts_the_updates_since_it_was_predicted() -> None:
    with at_work(experiment(ga3c={"training_batch": 4})) as bench:
        bench.slots.counters[6, Count.UPDATES] = 5
        bench.submit([steps(3, born=[3, 3, 4]), steps(2, born=[5, 5]), steps(4, born=[0, 1, 2, 3])])
        bench.start(Trainer)
        bench.end()
        # 2 + 2 + 1 + 0 + 0 before the first update; with it there are six.
        assert bench.slots.counters[0].tolist() == [0, 0, 3, 9, 2, 5 + 6 + 5 + 4 + 3]


def test_ppo_makes_several_updates_of_a_rollout() -> None:
    with at_work(
        experiment(
            algorithm={"name": "ppo", "epochs": 3, "minibatch_size": 4}, ga3c={"training_batch": 8}
        )
    ) as bench:
        bench.submit([steps(4), steps(4, cut=False), steps(4), steps(4)])
        bench.start(Trainer)
        bench.end()
        assert [bench.count(what) for what in (Count.ROLLOUTS, Count.STEPS, Count.UPDATES)] == [
            4,
            16,
            2 * 3 * 2,
        ]
        assert np.isfinite(bench.slots.weights).all()


def test_rollouts_are_awaited_until_there_are_enough_steps_and_meanwhile_their_slots_are_free() -> (
    None
):
    with at_work(experiment(ga3c={"training_batch": 6})) as bench:
        oracle, rollouts = Oracle(bench), [steps(4), steps(1), steps(1, cut=False)]
        for slot, rollout in ((0, rollouts[0]), (5, rollouts[1])):
            bench.fill(slot, rollout)
        put(bench.engine.training_in, (0, 5))
        bench.start(Trainer)
        until(lambda: bench.count(Count.ROLLOUTS) == 2)
        assert not bench.slots.busy.any() and [bench.rung(agent) for agent in range(3)] == [1, 1, 0]
        assert bench.count(Count.UPDATES) == 0
        for slot in (0, 5):  # their agents go on in them
            bench.fill(slot, steps(4, seed=7))
        bench.fill(9, rollouts[2])
        put(bench.engine.training_in, (9,))
        bench.end()
        assert (bench.count(Count.UPDATES), bench.count(Count.STEPS), bench.rung(2)) == (1, 6, 1)
        oracle.update(rollouts)
        np.testing.assert_allclose(bench.slots.weights, oracle.weights, rtol=1e-4, atol=1e-5)


def test_two_trainers_on_one_vector_lose_no_count() -> None:
    with at_work(
        experiment(optimizer={"learning_rate": 1e-6}, ga3c={"rollouts": 50}), agents=8
    ) as bench:
        lengths = [number % 4 + 1 for number in range(400)]
        bench.submit([steps(n, seed=number) for number, n in enumerate(lengths)])
        bench.start(Trainer, Trainer)
        bench.end()
        totals = [bench.count(what) for what in (Count.ROLLOUTS, Count.STEPS, Count.UPDATES)]
        assert totals == [400, sum(lengths), 400] and bench.slots.updates == 400
        assert bench.slots.counters[:2].sum(0).tolist() == bench.slots.counters.sum(0).tolist()
        assert not bench.slots.busy.any() and not waiting(bench.engine.training)
        assert np.isfinite(bench.slots.weights).all()


# Leaving.


def alive(bench: Bench) -> int:
    return sum(thread.is_alive() for thread in bench.threads)


@pytest.mark.parametrize("kind", [Predictor, Trainer])
def test_a_word_to_leave_is_for_one_thread(kind: type[Predictor] | type[Trainer]) -> None:
    with at_work(experiment()) as bench:
        queue = bench.engine.predictions_in if kind is Predictor else bench.engine.training_in
        bench.start(kind, kind, kind)
        put(queue, (LEAVE,))
        until(lambda: alive(bench) == 2)
        for lane in range(8):  # the others work on
            if kind is Predictor:
                bench.ask([lane], observations(1))
            else:
                bench.fill(lane, steps(2))
                put(queue, (lane,))
        until(lambda: bench.count(Count.PREDICTIONS if kind is Predictor else Count.UPDATES) == 8)
        assert alive(bench) == 2
        put(queue, (LEAVE, LEAVE))
        until(lambda: not alive(bench))


def test_a_predictor_answers_what_else_it_took_and_passes_on_words_that_are_for_others() -> None:
    with at_work(experiment()) as bench:
        bench.slots.asked[:3] = 1
        put(bench.engine.predictions_in, (0, LEAVE, 1, LEAVE, 2, LEAVE))
        bench.start(Predictor)
        bench.threads[0].join(PATIENCE)
        assert not alive(bench) and bench.slots.answered.tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
        assert waiting(bench.engine.predictions) == 2
        bench.start(Predictor, Predictor)
        until(lambda: not alive(bench))
        assert waiting(bench.engine.predictions) == 0 and bench.count(Count.PREDICTIONS) == 3


def test_a_trainer_learns_from_what_else_it_took_and_passes_on_words_that_are_for_others() -> None:
    with at_work(experiment(ga3c={"training_batch": 100})) as bench:
        rollouts = [steps(4), steps(2, cut=False)]
        oracle = Oracle(bench)
        for slot, rollout in enumerate(rollouts):
            bench.fill(slot, rollout)
        put(bench.engine.training_in, (0, LEAVE, 1, LEAVE))
        bench.start(Trainer)
        bench.threads[0].join(PATIENCE)
        oracle.update(rollouts)
        np.testing.assert_allclose(bench.slots.weights, oracle.weights, rtol=1e-4, atol=1e-5)
        assert (
            bench.count(Count.UPDATES),
            bench.count(Count.STEPS),
            waiting(bench.engine.training),
        ) == (1, 6, 1)
        bench.start(Trainer)
        until(lambda: not alive(bench))
        assert waiting(bench.engine.training) == 0 and bench.count(Count.UPDATES) == 1


# What cannot be built.


class Squeezed(Gaussian):
    def __init__(self, space: Any) -> None:
        super().__init__(space)
        self.to_environment = lambda action: 2.0 * np.tanh(action)


class Bounded(A3C):
    head = Squeezed


class OnlyGradients:
    """As the documents have it: it is tried on a perceptron, and has no losses."""

    def __init__(self, settings: Any, model: Any) -> None:
        assert isinstance(model.network, Perceptron)

    def gradients(self, *_: Any) -> Any:
        raise NotImplementedError


def test_what_cannot_be_built_is_said_when_it_is_built() -> None:
    ours, theirs = multiprocessing.Pipe()
    for name in ("network.name", "algorithm.name"):
        with pytest.raises(ConfigurationError, match=f"^{name} = "):
            Engine(experiment().with_settings({name: f"{__name__}:Nothing"}), theirs)
    pendulum = {"environment.id": "Pendulum-v1", "algorithm.name": f"{__name__}:Bounded"}
    with pytest.raises(ConfigurationError, match="its head changes what the environment takes"):
        Engine(experiment().with_settings(pendulum), theirs)
    Engine(experiment().with_settings({"algorithm.name": f"{__name__}:OnlyGradients"}), theirs)
    ours.close()
    theirs.close()


class Raising:
    """A learner that cannot learn."""

    def __init__(self, algorithm: Algorithm, model: Model) -> None: ...

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[Tensor]:
        raise ArithmeticError("nothing to learn here")
        yield


def test_threads_come_and_go_and_no_two_that_live_count_in_one_row() -> None:
    with at_work(experiment()) as bench:
        for predictors, trainers in ((1, 1), (2, 3), (2, 1), (4, 4), (1, 2), (3, 1), (1, 1)):
            bench.engine.resize(predictors, trainers)
            until(
                lambda kinds=(predictors, trainers): (
                    (len(bench.living(Predictor)), len(bench.living(Trainer))) == kinds
                )
            )
            rows = bench.living(Predictor) + bench.living(Trainer)
            assert len(set(rows)) == predictors + trainers
            bench.use()
        assert bench.slots.counters.sum(0)[[Count.PREDICTIONS, Count.UPDATES]].tolist() == [7, 7]


def test_a_thread_that_fails_is_said_to_have(capsys: pytest.CaptureFixture[str]) -> None:
    with at_work(experiment(algorithm={"name": f"{__name__}:Raising"})) as bench:
        bench.engine.resize(1, 1)
        bench.slots.lengths[4], bench.slots.busy[4] = 2, True
        put(bench.training[1].fileno(), (4,))
        assert bench.control.poll(PATIENCE)
        kind, reason = bench.control.recv()
        assert kind == "failed"
        assert reason.startswith("ArithmeticError: nothing to learn here (")
        assert "Traceback" in capsys.readouterr().err
        bench.engine._counts[Trainer] = 0


def test_on_a_device_the_memory_has_a_copy_that_is_renewed_changed_and_taken_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "find_device", lambda *_: torch.device("cpu:0"))
    with at_work(experiment(environment={"normalize_observations": True})) as bench:
        slots, weights = bench.slots, bench.engine.weights
        trainable = len(slots.change)
        weights.vector[:], weights.state[:] = 1.0, 2.0
        slots.weights[trainable:] = 9.0
        ended = threading.Event()

        def serve() -> None:
            with pytest.raises(EOFError):
                bench.engine.serve()
            ended.set()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()

        def published() -> float:
            bench.control.send(("publish",))
            assert bench.control.poll(PATIENCE) and bench.control.recv() == ("published",)
            assert (slots.weights[trainable:] == 9.0).all() and (
                slots.weights[:trainable] == slots.weights[0]
            ).all()
            return float(slots.weights[0])

        assert published() == 1.0 and (slots.state == 2.0).all()
        slots.change[:] = 0.5
        bench.control.send(("change",))
        assert slots.weights[0] == 1.0
        assert published() == 1.5
        slots.weights[:trainable], slots.state[:] = -3.0, 0.0
        bench.control.send(("reset",))
        bench.control.send(("resize", 2, 1))
        until(lambda: (len(bench.living(Predictor)), len(bench.living(Trainer))) == (2, 1))
        assert (weights.vector == -3.0).all() and not weights.state.any()
        bench.control.close()
        assert ended.wait(PATIENCE)
        thread.join()
