"""The pruner against the pure rule, event for event. `test_storages.py` has several processes."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from optuna.storages import InMemoryStorage
from optuna.trial import TrialState

from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.pruner import HyperTrickPruner, decisions
from genkidama.plugins.hypertrick.rule import (
    Decision,
    HyperTrick,
    Mode,
    Verdict,
    workers_before_selection,
)
from tests.helpers import python

NAN = float("nan")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(before)


@dataclass(frozen=True)
class Event:
    """One thing that happens to one of the running trials, or to a new one."""

    pick: int
    action: str
    value: float = 0.0


def replay(study: optuna.Study, events: Sequence[Event], **settings: Any) -> list[Decision]:
    """Plays the events through the study's pruner and through the rule.

    Every verdict must be equal.
    """
    rule = HyperTrick(**settings)
    study.pruner = HyperTrickPruner(**settings)
    sign = 1 if study.direction == optuna.study.StudyDirection.MAXIMIZE else -1
    running: list[optuna.Trial] = []
    done: dict[int, int] = {}
    unasked: dict[int, tuple[int, float]] = {}
    expected: dict[tuple[int, int], Decision] = {}

    def settle(number: int, verdict: Verdict) -> None:
        """A report that nobody asked about counts when its trial goes on or ends."""
        if number in unasked:
            phase, metric = unasked.pop(number)
            rule.restore([Decision(number, phase, metric, 0, 0, Mode.NONE, verdict)])

    for event in events:
        if event.action == "elsewhere":  # as in another process, or after a restart
            study.pruner = pickle.loads(pickle.dumps(study.pruner))
            continue
        if event.pick % (len(running) + 1) == len(running):
            running.append(study.ask())
        trial = running[event.pick % len(running)]
        number = trial.number
        phase = done.setdefault(number, 0)
        if event.action == "fail":
            settle(number, Verdict.STOP)
            study.tell(trial, state=TrialState.FAIL)
            running.remove(trial)
            continue
        settle(number, Verdict.CONTINUE)
        trial.report(event.value, phase)
        done[number] += 1
        if event.action == "report":
            unasked[number] = phase, sign * event.value
        else:
            decision = rule.decide(number, phase, sign * event.value)
            assert [trial.should_prune(), trial.should_prune()] == [
                decision.verdict is Verdict.STOP
            ] * 2, (event, decision)
            if phase in rule.decide_after:
                expected[number, phase] = decision
            if decision.verdict is Verdict.STOP:
                study.tell(trial, state=TrialState.PRUNED)
                running.remove(trial)
                continue
        if done[number] == rule.phases:
            settle(number, Verdict.CONTINUE)
            study.tell(trial, 0.0)
            running.remove(trial)
    found = decisions(study)
    assert {(d.trial, d.phase): repr(d) for d in found} == {
        place: repr(
            Decision(d.trial, d.phase, sign * d.metric, d.order, d.worse, d.mode, d.verdict)
        )
        for place, d in expected.items()
    }
    return found


values = st.one_of(
    st.sampled_from([0.0, 1.0, 2.0, NAN, float("inf"), float("-inf")]), st.floats(allow_nan=True)
)
actions = st.sampled_from(["ask"] * 8 + ["report", "fail", "elsewhere"])
scripts = st.lists(st.builds(Event, st.integers(0, 999), actions, values), min_size=1, max_size=60)


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    phases = draw(st.integers(1, 5))
    subset = (
        st.lists(st.integers(0, phases - 2), unique=True).map(sorted) if phases > 1 else st.just([])
    )
    return {
        "workers": draw(st.integers(1, 12)),
        "phases": phases,
        "eviction_rate": draw(st.floats(0.05, 0.95)),
        "decide_after": draw(st.none() | subset),
        "cohort": draw(st.none() | st.integers(1, 5)),
        "adaptive": draw(st.booleans()),
        "seed": draw(st.integers(0, 3)),
    }


@given(scripts, rules(), st.sampled_from(["maximize", "minimize"]))
# Eight passed where four were expected, which the pruner must know after a restart.
@example(
    [
        *(Event(number, "ask", float(number)) for number in range(8)),
        *(Event(0, "ask", 5.0), Event(1, "ask"), Event(1, "elsewhere"), Event(1, "ask", 3.0)),
    ],
    {"workers": 8, "phases": 3, "eviction_rate": 0.5, "adaptive": True},
    "maximize",
)
def test_every_verdict_is_the_rules(
    events: list[Event], settings: dict[str, Any], direction: str
) -> None:
    replay(optuna.create_study(direction=direction), events, **settings)


@pytest.mark.parametrize("decide_after", [None, [0]])
def test_nan_prunes_after_every_phase_and_only_there(decide_after: list[int] | None) -> None:
    pruner = HyperTrickPruner(
        workers=9, phases=3, eviction_rate=0.25, decide_after=decide_after, first_step=1, interval=2
    )
    study = optuna.create_study(pruner=pruner)
    verdicts = []
    for step in range(6):
        trial = study.ask()
        trial.report(NAN, step)
        verdicts.append(trial.should_prune())
    assert verdicts == [False, True] * 3


@pytest.mark.parametrize(
    ("options", "judged"),
    [
        ({}, [0, 1, 2]),
        ({"first_step": 1}, [1, 2, 3]),
        ({"first_step": 1000, "interval": 1000}, [1000, 2000, 3000]),
        ({"first_step": 9, "interval": 10}, [9, 19, 29]),
        ({"first_step": 5, "interval": 7, "decide_after": [0, 2]}, [5, 19]),
    ],
)
def test_which_steps_are_judged(options: dict[str, Any], judged: list[int]) -> None:
    study = optuna.create_study(
        direction="maximize",
        pruner=HyperTrickPruner(workers=1, phases=4, eviction_rate=0.5, **options),
    )
    last = 3 * options.get("interval", 1) + options.get("first_step", 0)
    steps = [
        *range(min(40, last + 1)),
        *[step for step in (999, 1000, 1001, 2000, 3000, 4000) if step <= last],
    ]
    assert workers_before_selection(1, 0.5, 0) == 0
    for value in (1.0, 0.0):
        for step in steps:  # each in two trials of its own, the second worse than the first
            trial = study.ask()
            trial.report(value, step)
            assert trial.should_prune() == (value == 0.0 and step in judged), step
    assert [
        step
        for trial in study.trials
        if "hypertrick:0" in trial.system_attrs
        for step in trial.intermediate_values
    ] == [judged[0]] * 2


def test_steps_after_the_last_phase_are_not_judged_and_a_warning_says_so() -> None:
    study = optuna.create_study(pruner=HyperTrickPruner(workers=5, phases=10, eviction_rate=0.25))
    trial = study.ask()
    trial.report(NAN, 1000)
    with pytest.warns(
        UserWarning,
        match=r"steps after 9, the last of 10 phases, are not judged: .* first_step and",
    ):
        assert not trial.should_prune()
    assert not study.ask().should_prune()  # nothing reported at all


def test_what_cannot_be_asked_any_more_counts_and_what_can_does_not() -> None:
    study = optuna.create_study(
        direction="maximize", pruner=HyperTrickPruner(workers=4, phases=3, eviction_rate=0.25)
    )
    study.add_trial(optuna.create_trial(value=5.0, intermediate_values={0: 5.0, 1: 5.0}))
    waits, gone, asks = study.ask(), study.ask(), study.ask()
    waits.report(7.0, 0)
    gone.report(6.0, 0)
    gone.report(6.0, 1)
    asks.report(5.5, 0)
    assert not asks.should_prune()
    assert [(d.order, d.worse) for d in decisions(study)] == [(3, 1)]
    assert not waits.should_prune()
    assert [(d.order, d.worse) for d in decisions(study)] == [(3, 1), (4, 3)]


class RacingStorage(InMemoryStorage):
    """Runs something once in a decision: after listing the trials, or before it is written."""

    after_listing: Callable[[], None] | None = None
    before_writing: Callable[[], None] | None = None

    def get_all_trials(self, *arguments: Any, **options: Any) -> list[optuna.trial.FrozenTrial]:
        trials = super().get_all_trials(*arguments, **options)
        then, self.after_listing = self.after_listing, None
        if then is not None:
            then()
        return trials

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        first, self.before_writing = self.before_writing, None
        if first is not None:
            first()
        super().set_trial_system_attr(trial_id, key, value)


def test_threads_of_one_process_take_turns() -> None:
    """One that has listed the trials is overtaken: let through, it would count a trial twice."""
    storage = RacingStorage()
    study = optuna.create_study(
        storage=storage, pruner=HyperTrickPruner(workers=4, phases=2, eviction_rate=0.2)
    )

    def one_more() -> None:
        trial = study.ask()
        trial.report(0.0, 0)
        trial.should_prune()
        study.tell(trial, 0.0)

    second = threading.Thread(target=one_more)

    def meanwhile() -> None:
        second.start()
        second.join(0.3)

    first = study.ask()
    first.report(0.0, 0)
    storage.after_listing = meanwhile
    first.should_prune()
    second.join()
    one_more()
    assert [(d.trial, d.order) for d in decisions(study)] == [(0, 1), (1, 2), (2, 3)]


def test_what_a_race_of_two_processes_can_do() -> None:
    """The slower one misses all that the other decides meanwhile.

    One more than W_p^DCM passes, and nobody loses a pass.
    """
    storage = RacingStorage()
    optuna.create_study(study_name="race", storage=storage, direction="maximize")
    one, other = [
        optuna.load_study(
            study_name="race",
            storage=storage,
            pruner=HyperTrickPruner(workers=2, phases=2, eviction_rate=0.2),
        )
        for _ in range(2)
    ]
    trials = [one.ask(), other.ask(), other.ask()]
    for trial, value in zip(trials, (0.0, 1.0, 0.5), strict=True):
        trial.report(value, 0)
    verdicts = []
    storage.before_writing = lambda: verdicts.extend(trial.should_prune() for trial in trials[1:])
    verdicts.append(trials[0].should_prune())
    assert workers_before_selection(2, 0.2, 0) == 1
    assert verdicts == [False, True, False]
    assert [(d.trial, d.order, d.mode) for d in decisions(one)] == [
        (0, 1, Mode.COLLECTION),
        (1, 1, Mode.COLLECTION),
        (2, 2, Mode.SELECTION),
    ]
    last = one.ask()
    last.report(0.6, 0)
    assert not last.should_prune()
    # Each counted once.
    assert decisions(one)[-1] == Decision(3, 0, 0.6, 4, 2, Mode.SELECTION, Verdict.CONTINUE)


class Unreadable(dict[int, float]):
    def __contains__(self, key: object) -> bool:
        raise AssertionError("read again")

    def __getitem__(self, key: int) -> float:
        raise AssertionError("read again")


def test_finished_trials_are_read_once() -> None:
    study = optuna.create_study(
        direction="maximize", pruner=HyperTrickPruner(workers=500, phases=3, eviction_rate=0.25)
    )
    study.add_trials(
        optuna.create_trial(value=i, intermediate_values={0: float(i), 1: float(i)})
        for i in range(400)
    )
    orders = []
    for i in range(20):
        trial = study.ask()
        for phase in range(2):
            trial.report(300.5, phase)
            assert not trial.should_prune()
        study.tell(trial, 1.0)
        orders.append(
            study.get_trials(deepcopy=False)[trial.number].system_attrs["hypertrick:1"]["order"]
        )
        for finished in study.get_trials(deepcopy=False)[: 400 + i]:
            finished.intermediate_values = Unreadable()
        (memory,) = study.pruner._memories.values()
        assert len(memory.unfinished) == 1
    assert orders == list(range(401, 421))


def test_a_repeated_trial_inherits_its_decisions_and_counts_once() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        repeat = optuna.storages.RetryHeartbeatStaleTrialCallback(inherit_intermediate_values=False)
    study = optuna.create_study(
        direction="maximize", pruner=HyperTrickPruner(workers=4, phases=3, eviction_rate=0.25)
    )
    lost = study.ask()
    lost.report(1.0, 0)
    assert not lost.should_prune()
    study.tell(lost, state=TrialState.FAIL)
    repeat(study, study.trials[0])
    again = study.ask()
    again.report(-1.0, 0)
    assert not again.should_prune()
    again.report(1.0, 1)
    assert not again.should_prune()
    study.tell(again, 1.0)
    study.pruner = HyperTrickPruner(workers=4, phases=3, eviction_rate=0.25)
    other = study.ask()
    other.report(2.0, 0)
    assert not other.should_prune()
    assert [(d.trial, d.phase, d.order) for d in decisions(study)] == [
        (0, 0, 1),
        (2, 0, 2),
        (1, 1, 1),
    ]


def test_trials_that_come_from_another_study_count_under_their_new_numbers() -> None:
    pruner = HyperTrickPruner(workers=4, phases=2, eviction_rate=0.25)
    old, new = [optuna.create_study(direction="maximize", pruner=pruner) for _ in range(2)]
    for value in (1.0, 2.0, 3.0):
        trial = old.ask()
        trial.report(value, 0)
        assert not trial.should_prune()
        old.tell(trial, value)
    new.add_trials(old.trials[1:])
    trial = new.ask()
    trial.report(2.5, 0)
    assert not trial.should_prune()
    assert [(d.trial, d.order, d.worse) for d in decisions(new)] == [
        (0, 2, 1),
        (1, 3, 2),
        (2, 3, 1),
    ]


def test_one_pruner_may_serve_several_studies() -> None:
    pruner = HyperTrickPruner(workers=4, phases=2, eviction_rate=0.25)
    for direction, count in (("maximize", 4), ("minimize", 6)):
        study = optuna.create_study(direction=direction, pruner=pruner)
        trials = [study.ask() for _ in range(count)]
        for trial in reversed(trials):
            trial.report(float(trial.number), 0)
            trial.should_prune()
        assert [(d.trial, d.order, d.worse) for d in decisions(study)] == [
            (count - 1 - n, n + 1, n if direction == "minimize" else 0) for n in range(count)
        ]
    assert copy.deepcopy(pruner)._memories is not pruner._memories


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"first_step": -1}, "first_step = -1: a whole number of at least 0"),
        ({"first_step": 0.5}, "first_step = 0.5"),
        ({"interval": 0}, "interval = 0: a whole number of at least 1"),
        ({"interval": True}, "interval = True"),
    ],
)
def test_bad_settings_are_named(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        HyperTrickPruner(**{"workers": 10, "phases": 10, "eviction_rate": 0.25, **change})


def test_without_optuna_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['optuna'] = None\n"
        "import genkidama\n"
        "try: genkidama.HyperTrickPruner\n"
        "except genkidama.errors.ConfigurationError as error: print(error)"
    )
    printed = python("-c", code).stdout
    assert printed.startswith("HyperTrickPruner needs Optuna: pip install 'genkidama-rl[search]' (")
