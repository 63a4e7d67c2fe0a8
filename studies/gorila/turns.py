"""What bundles learn from a step, in virtual time: why do eight learn less from each than one?

Question: 1, 2, 4 and 8 bundles train cart pole by DQN, with Adam and with AdaGrad as in the source
(Nair et al. 2015), and make one update for each step of all together. What return do they reach
after 10,000 steps? If eight reach less than one, is it their rate, the staleness of their
gradients, or that each samples its own steps alone? One of these is changed at a time, with eight
bundles, and then what helps together. Last, DQN by averaging over 1, 2 and 4 children.

Bound: five seeds of each optimizer, three of a change, 55 minutes at idle priority, the cells in
the order of `CELLS`; what has not run by then is not run. What would change our mind: a cause is
one if its change alone brings the return of eight to that of one, within the interval. If none
does, there is another one.

Method: the bundles take turns in this process, a gradient each, in the order of their numbers.
Cores, sessions and the parent are those of a run. Only sockets and clocks are missing, so speed
does not matter, and a run is the same again. A gradient waits for a turn of each other bundle: it
is n−1 versions old, as on machines of equal speed. With `fresh` a bundle takes θ_P before each
gradient. With `together` all sample the steps of all, as from a global replay. The rate stays as it
is at the start. Every 1,000 steps of all, θ_P is judged by 20 episodes without ε. `whole` is the
mean of these ten returns; `to 475` are the steps of the first with a mean of at least that.

    python -m studies.gorila.turns run [--cells adam fresh] [--seeds 1 2 3]
    python -m studies.gorila.turns report
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from benchmarks import store
from benchmarks.processes import command
from benchmarks.store import Row
from genkidama.child.collector import CollectedBatch
from genkidama.child.core import SingleCore
from genkidama.child.core_forkserver import layout_of
from genkidama.child.shared_memory import SharedMemory, SharedWeights
from genkidama.child.worker import EPISODE, WorkerPipe
from genkidama.config.experiment import Experiment
from genkidama.config.schedules import learning_rate
from genkidama.errors import EnvironmentFailure
from genkidama.learning.environments import make_environment
from genkidama.learning.learners import updates
from genkidama.learning.model import Model
from genkidama.protocol.messages import Request
from genkidama.protocol.session import Begin, BlendReply, Session, Train
from genkidama.protocol.vector import Vector
from genkidama.runs.evaluation_worker import play
from genkidama.server.events import Exchange
from genkidama.server.parameter_server import ParameterServer
from studies.differences import NONE, middle
from studies.scaling.machines import ROOT
from studies.scaling.matrix import _GORILA

GOAL = 475.0
STEPS, EVERY, EPISODES = 10_000, 1_000, 20

#: Steps of all together before the first update.
_START = 512

#: What the bundles of a global replay have in common.
_RING = ("replay", "head", "filled", "ended")


@dataclass(frozen=True)
class Cell:
    """What is trained: what differs from `examples/cartpole/dqn.toml`, and with how many."""

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    bundles: tuple[int, ...] = (8,)
    seeds: int = 3
    #: Whether θ_P is pulled before each gradient, so that none is stale.
    fresh: bool = False
    #: Whether each bundle samples the steps of all.
    together: bool = False


_ADAGRAD = {"optimizer.name": "adagrad", "optimizer.learning_rate": 0.03}
_AVERAGES = {
    "child.exchange": "free",
    "child.exchange_steps": 100,
    "algorithm.target_updates": 40,
    "algorithm.target_versions": 0,
}


def _rule(**options: Any) -> dict[str, Any]:
    return {"parent.rule_options": options}


CELLS: dict[str, Cell] = {
    "adam": Cell("Adam", bundles=(1, 8), seeds=5),
    "fresh": Cell("no gradient is stale", fresh=True),
    "together": Cell("all sample the steps of all", together=True),
    "rate-root": Cell("rate by √n", _rule(children_power=-0.5)),
    "rate": Cell("rate by n", _rule(children_power=-1.0)),
    "both": Cell("none is stale, all sample all", fresh=True, together=True),
    "discards": Cell("older than 3 versions left out", _rule(max_staleness=3)),
    "adagrad": Cell("AdaGrad", _ADAGRAD, (1, 8), 5),
    "adam-more": Cell("Adam", bundles=(2, 4), seeds=5),
    "adagrad-more": Cell("AdaGrad", _ADAGRAD, (2, 4), 5),
    "blend": Cell("averaging, a blend", {**_AVERAGES, "parent.rule": "blend"}, (1, 2, 4)),
    "difference": Cell(
        "averaging, differences",
        {**_AVERAGES, "parent.rule": "difference", "parent.alpha": 1.0}
        | _rule(children_power=-0.5),
        (1, 2, 4),
    ),
}


class Wanted(NamedTuple):
    """One run."""

    cell: str
    bundles: int
    seed: int

    @classmethod
    def of(cls, row: Row) -> Wanted:
        return cls(*(row[name] for name in cls._fields))

    def __str__(self) -> str:
        return f"{self.cell}, {self.bundles} bundles, seed {self.seed}"


def experiment_of(one: Wanted) -> Experiment:
    """The experiment that the bundles learn."""
    cell = CELLS[one.cell]
    settings = {
        **_GORILA,
        "parent.alpha": 0.5,
        "optimizer.schedule": "constant",
        "algorithm.start_steps": _START if cell.together else _START // one.bundles,
        "child.cores": 1,
        "seed": one.seed,
    }
    example = Experiment.load(ROOT / "examples/cartpole/dqn.toml")
    return example.with_settings({**settings, **cell.settings})


class _Notes(WorkerPipe):
    """In the place of a core's line to its orchestrator: the returns of its episodes."""

    def __init__(self) -> None:
        self.returns: list[float] = []

    def check(self) -> None:
        pass

    def report(self, kind: int, episode_return: float = 0.0, steps: int = 0) -> None:
        if kind == EPISODE:
            self.returns.append(episode_return)

    def pause(self, after: str = "episode") -> None:
        pass


class Bundle:
    """A child of one core, which acts, remembers and learns, and its conversation with the parent.

    Args:
        number: which one it is, from 0.
        one: the run.
        server: the parent.
        model: gives the network and its initial numbers.
        common: the memory whose replay this bundle shares; None if it has one of its own.
    """

    def __init__(
        self,
        number: int,
        one: Wanted,
        server: ParameterServer,
        model: Model,
        common: SharedMemory | None,
    ) -> None:
        self._server = server
        self._name = f"bundle-{number}"
        self._session = Session(self._name, self._name, parent="the parent")
        trained = self._ask(self._session.hello())
        assert isinstance(trained, Train)
        experiment = trained.experiment
        self._experiment = experiment
        together = CELLS[one.cell].together
        layout = layout_of(experiment, model).for_cores(one.bundles if together else 1)
        self.memory = SharedMemory(layout)
        for name in _RING if common is not None else ():
            setattr(self.memory, name, getattr(common, name))
        self._weights = SharedWeights(self.memory, model.numbers.tobytes())
        self._notes = _Notes()
        index = number if together else 0
        self._core = SingleCore(index, experiment, self.memory, self._notes, (one.seed, number))
        self._core.collector.reset(int(np.random.default_rng((one.seed, number)).integers(2**31)))
        self._steps = 0
        self.staleness: list[int] = []
        begin = self._ask(self._session.join(model.signature))
        assert isinstance(begin, Begin)
        self._weights.begin(begin.vector)
        if begin.vector is None:  # the first one brings the weights
            self._push(None)
        self._core.pull()
        self._turns = self._work(CELLS[one.cell].fresh)

    def turn(self) -> None:
        """Learns until it has something to push, or pushes what it had and learns on."""
        next(self._turns)

    def _ask(self, request: Request) -> Any:
        reply = self._server.handle(self._name, request, float(self._server.exchanges))
        decision = self._session.receive(request, reply)
        if isinstance(decision, BlendReply):
            self._take(decision)
        return decision

    def _take(self, reply: BlendReply) -> None:
        self._weights.set_progress(reply.progress)
        self.memory.progress[1] = self._session.version
        if reply.vector is None:
            return
        if reply.sent is not None and self._session.pushes == "weights":
            self._weights.blend(reply.sent, reply.vector, self._experiment.child.beta, False)
        else:
            self.memory.weights[:] = reply.vector

    def _push(self, gradient: Vector | None) -> None:
        returns, self._notes.returns = self._notes.returns, []
        self._session.add_work(self._steps, returns, {})
        self._steps = 0
        self.staleness.append(self._server.trial.version - self._session.version)
        self._ask(self._session.push(self._weights.snapshot(), gradient))

    def _work(self, fresh: bool) -> Iterator[None]:
        """As `SingleCore.run`; yields where others have their turns."""
        core, averages = self._core, self._session.pushes != "gradient"
        while True:
            batch = core.collector.collect()
            self._steps += batch.steps
            if averages:
                core.learn(batch)
                if self._steps >= self._experiment.child.exchange_steps:
                    yield
                    self._push(None)
                    core.pull()
            else:
                pushes = len(self.staleness)
                yield from self._gradients(batch, fresh)
                if len(self.staleness) == pushes:  # there is too little to learn from
                    yield

    def _gradients(self, batch: CollectedBatch, fresh: bool) -> Iterator[None]:
        """As `SingleCore.learn`, with an exchange for each gradient."""
        core, settings = self._core, self._experiment
        rollout = core._rollout(batch)
        steps = core.model.gradients(core._learner, rollout, core._rng)
        rate = learning_rate(settings.optimizer, rollout.progress)
        limit = settings.algorithm.max_gradient_norm
        for _ in updates(steps, core.model, core._optimizer, rate, limit):
            for part in core._parts:
                part.updated()
            if not fresh:
                yield
            self._push(self.memory.gradients[core.index].copy())
            if fresh:
                yield
                pull = self._session.pull()
                assert pull is not None
                self._ask(pull)
            core.pull()


def measure(one: Wanted, steps: int = STEPS, every: int = EVERY, episodes: int = EPISODES) -> Row:
    """One row: the run, and θ_P judged every so many steps."""
    began = time.process_time()
    experiment = experiment_of(one)
    server = ParameterServer(experiment, "bundles")
    left_out: Counter[str] = Counter()
    curve: list[list[float]] = []
    with ExitStack() as stack:
        environment = stack.enter_context(closing(make_environment(experiment.environment)))
        model = Model(experiment, environment)
        bundles: list[Bundle] = []
        for number in range(one.bundles):
            common = bundles[0].memory if bundles and CELLS[one.cell].together else None
            bundles.append(Bundle(number, one, server, model, common))
            stack.enter_context(closing(bundles[-1].memory))
        while server.trial.steps < steps:
            for bundle in bundles:
                bundle.turn()
            for event in server.take_events():
                if isinstance(event, Exchange) and isinstance(event.left_out, str):
                    left_out[event.left_out] += 1
            if server.trial.steps >= every * (len(curve) + 1):
                model.numbers[:] = server.trial.vector
                returns = play(model, environment, range(episodes), one.seed, greedy=False)
                curve.append([server.trial.steps, round(fmean(returns), 1)])
    return {
        **one._asdict(),
        "settings": {**CELLS[one.cell].settings},
        "judged_by": episodes,
        "curve": curve,
        "training_mean": server.trial.mean_return,
        "version": server.trial.version,
        "staleness": round(fmean(stale for each in bundles for stale in each.staleness), 2),
        "left_out": dict(left_out),
        "cpu": round(time.process_time() - began, 1),
    }


def planned(cells: list[str], seeds: list[int]) -> list[Wanted]:
    """All runs: cell by cell, in each seed by seed."""
    return [
        Wanted(name, bundles, seed)
        for name, cell in CELLS.items()
        if name in cells
        for seed in seeds[: cell.seeds]
        for bundles in cell.bundles
    ]


def table(rows: list[Row]) -> str:
    """A line for each cell and number of bundles: medians, and their intervals."""
    lines = [
        "| | n | seeds | after 10,000 | whole | to 475 | staleness | left out |",
        "|---|---|---|---|---|---|---|---|",
    ]
    labels = list(dict.fromkeys(cell.label for cell in CELLS.values()))
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((CELLS[row["cell"]].label, row["bundles"]), []).append(row)
    for (label, bundles), these in sorted(
        groups.items(), key=lambda item: (labels.index(item[0][0]), item[0][1])
    ):
        curves = [[mean for _, mean in row["curve"]] for row in these]
        reached = [next((at for at, mean in row["curve"] if mean >= GOAL), None) for row in these]
        known = [at for at in reached if at is not None]
        out = sum(sum(row["left_out"].values()) for row in these)
        cells = [
            label,
            str(bundles),
            str(len(these)),
            middle([curve[-1] for curve in curves]),
            middle([fmean(curve) for curve in curves]),
            f"{median(known):,.0f} ({len(known)} of {len(these)})" if known else NONE,
            f"{median(row['staleness'] for row in these):.1f}",
            f"{out / (out + sum(row['version'] for row in these)):.0%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


@command
def main(arguments: list[str] | None = None) -> int:
    parser = store.parser("gorila.turns", __doc__)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    results = ROOT / "docs/results/gorila-turns.jsonl"
    parser.add_argument("--results", type=type(results), default=results)
    options = parser.parse_args(arguments)
    rows = store.read(options.results)
    if options.what == "run":
        wanted = planned(options.cells, options.seeds)
        done = {Wanted.of(row) for row in rows}
        well = store.run(
            wanted,
            [one for one in wanted if one not in done],
            rows,
            options.results,
            measure=measure,
            announce=lambda left: f"{len(left)} left",
            outcome=lambda row: f"{row['curve'][-1][1]} in {row['cpu']} s of CPU time",
        )
        return 0 if well else EnvironmentFailure.exit_code
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
