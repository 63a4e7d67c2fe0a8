"""The scheduler for Ray Tune: event for event against the rule alone, and in a real search."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.rule import Decision, HyperTrick, Mode, Verdict
from tests.helpers import ROOT

if TYPE_CHECKING:
    from ray.tune.experiment import Trial

    from genkidama.plugins.hypertrick.ray_tune import HyperTrickScheduler

NAN = math.nan
RULE: dict[str, Any] = {"workers": 6, "phases": 3, "eviction_rate": 0.25}


@pytest.fixture(scope="module", autouse=True)
def _ray() -> None:
    """Ray takes two seconds to import, which workers that run other files need not wait for."""
    pytest.importorskip("ray.tune", reason="needs the extra `ray`")


def scheduler(**settings: Any) -> HyperTrickScheduler:
    from genkidama.plugins.hypertrick.ray_tune import HyperTrickScheduler

    return HyperTrickScheduler(**{**RULE, "metric": "score", "mode": "max", **settings})


def journal(directory: Path) -> Path:
    """Where a run in `directory` keeps its decisions."""
    from genkidama.plugins.hypertrick.ray_tune import JOURNAL

    return directory / JOURNAL


def new_trial(number: int, directory: Path | None = None) -> Trial:
    """A real trial of Ray's without its trainable.

    Of its storage only what the scheduler uses, for the rest needs a running Ray.
    """
    from ray.tune.experiment import Trial

    trial = Trial("train", stub=True, trial_id=f"id{number}")
    if directory is not None:
        trial.storage = SimpleNamespace(experiment_driver_staging_path=str(directory))
    return trial


def trials_of(
    target: HyperTrickScheduler, count: int = 6, directory: Path | None = None
) -> list[Trial]:
    trials = [new_trial(number, directory) for number in range(count)]
    for trial in trials:
        target.on_trial_add(None, trial)
    return trials


def result(iteration: float, score: object, **more: object) -> dict[str, Any]:
    return {"training_iteration": iteration, "score": score, **more}


#: Whose phase ends, with which metric; NaN is a crash.
events = st.lists(
    st.tuples(
        st.integers(0, RULE["workers"] - 1), st.sampled_from([NAN, -1.0, 0.0, 1.0, 2.0, 5.0])
    ),
    max_size=24,
)


def played(
    rule: HyperTrick, events: list[tuple[int, float]], sign: int = 1
) -> list[tuple[int, int, float, str]]:
    """(trial, phase, metric, what Ray must hear), until a trial is stopped or complete."""
    ran = [0] * RULE["workers"]
    history = []
    for trial, metric in events:
        phase = ran[trial]
        if phase < RULE["phases"]:
            stopped = rule.report(trial, phase, sign * metric) is Verdict.STOP
            ran[trial] = RULE["phases"] if stopped else phase + 1
            history.append(
                (
                    trial,
                    phase,
                    metric,
                    "STOP" if stopped or phase == RULE["phases"] - 1 else "CONTINUE",
                )
            )
    return history


def fail(target: HyperTrickScheduler, trial: Trial) -> None:
    """What Ray does where a trial raises or its node is gone."""
    trial.run_metadata.num_failures += 1
    target.on_trial_error(None, trial)


def tell(
    target: HyperTrickScheduler,
    trials: list[Trial],
    trial: int,
    phase: int,
    metric: float,
    length: int = 1,
) -> str:
    if math.isnan(metric):
        fail(target, trials[trial])
        return "STOP"
    return target.on_trial_result(None, trials[trial], result((phase + 1) * length, metric))


@given(
    events,
    st.sampled_from(["max", "min"]),
    st.integers(1, 3),
    st.sampled_from([{}, {"cohort": 3, "seed": 4}, {"decide_after": (1,)}]),
)
def test_the_same_verdicts_as_the_rule_alone(
    events: list[tuple[int, float]], mode: str, length: int, options: dict[str, Any]
) -> None:
    rule = HyperTrick(**RULE, **options)
    ours = scheduler(mode=mode, phase_length=length, **options)
    trials = trials_of(ours)
    for trial, phase, metric, expected in played(rule, events, 1 if mode == "max" else -1):
        assert tell(ours, trials, trial, phase, metric, length) == expected
    assert repr(ours.rule.decisions) == repr(rule.decisions)


def test_only_what_ends_a_phase_is_reported() -> None:
    ours = scheduler(phase_length=2.5, time_attr="hours")
    trial = trials_of(ours, 1)[0]
    reported = []
    for hours in (1, 2, 2.4, 2.5, 4, 4.9, 5.1):
        assert ours.on_trial_result(None, trial, {"hours": hours, "score": hours}) == "CONTINUE"
        reported.append(len(ours.rule.decisions))
    assert reported == [0, 0, 0, 1, 1, 1, 2]
    assert [decision.metric for decision in ours.rule.decisions] == [2.5, 5.1]
    assert ours.on_trial_result(None, trial, {"hours": 7.5, "score": 0.0}) == "STOP"  # complete


def test_a_time_that_is_a_sum_of_floats_ends_its_phase() -> None:
    ours = scheduler(phase_length=0.3)
    trial = trials_of(ours, 1)[0]
    assert 0.1 + 0.7 - 0.2 < 0.6
    ours.on_trial_result(None, trial, result(0.1 + 0.7 - 0.2, 1.0))
    assert [decision.phase for decision in ours.rule.decisions] == [0, 1]


def test_a_result_that_ends_several_phases_reports_each_until_it_is_stopped() -> None:
    ours = scheduler(workers=1)  # nobody passes for being early
    first, second, third = trials_of(ours, 3)
    assert ours.on_trial_result(None, first, result(2, 5.0)) == "CONTINUE"
    assert [(decision.phase, decision.metric) for decision in ours.rule.decisions] == [
        (0, 5.0),
        (1, 5.0),
    ]
    assert ours.on_trial_result(None, second, result(2, 1.0)) == "STOP"
    assert [(decision.trial, decision.phase) for decision in ours.rule.decisions[2:]] == [(1, 0)]
    assert ours.on_trial_result(None, third, result(10, 9.0)) == "STOP"
    assert [(decision.trial, decision.phase) for decision in ours.rule.decisions[3:]] == [
        (2, 0),
        (2, 1),
        (2, 2),
    ]


def test_a_last_result_that_only_ends_the_trial_counts() -> None:
    """If a stopper of Ray's ends a trial, its result comes with `on_trial_complete` alone."""
    ours = scheduler()
    first, second = trials_of(ours, 2)
    ours.on_trial_complete(None, first, result(1, 4.0))
    ours.on_trial_complete(None, first, result(1, 4.0))
    ours.on_trial_complete(None, second, {"done": True})
    ours.on_trial_remove(None, second)
    assert [(decision.trial, decision.metric) for decision in ours.rule.decisions] == [(0, 4.0)]


def test_a_trial_that_ray_tries_again_has_not_failed_and_its_repeated_phases_count_once() -> None:
    ours = scheduler()
    trial = trials_of(ours, 1)[0]
    trial.max_failures = 1
    ours.on_trial_result(None, trial, result(1, 4.0))
    fail(ours, trial)
    ours.on_trial_add(None, trial)
    assert ours.on_trial_result(None, trial, result(1, 3.0)) == "CONTINUE"
    assert ours.on_trial_result(None, trial, result(2, 3.0)) == "CONTINUE"
    assert [(decision.phase, decision.metric) for decision in ours.rule.decisions] == [
        (0, 4.0),
        (1, 3.0),
    ]
    fail(ours, trial)
    assert ours.rule.decisions[-1].mode is Mode.FAILURE


def test_a_trial_that_reports_nan_is_stopped() -> None:
    ours = scheduler()
    trial = trials_of(ours, 1)[0]
    assert ours.on_trial_result(None, trial, result(1, NAN)) == "STOP"
    assert ours.on_trial_result(None, trial, result(1, NAN)) == "STOP"


def test_a_failed_trial_that_is_resumed_by_the_user_goes_on() -> None:
    """`Tuner.restore(…, resume_errored=True)`."""
    ours = scheduler()
    trial = trials_of(ours, 1)[0]
    fail(ours, trial)
    ours.on_trial_add(None, trial)
    assert ours.on_trial_result(None, trial, result(1, 3.0)) == "CONTINUE"
    assert ours.on_trial_result(None, trial, result(2, 3.0)) == "CONTINUE"
    assert [decision.mode for decision in ours.rule.decisions] == [Mode.FAILURE, Mode.COLLECTION]


# What Ray keeps, and gives back.


@given(events, st.integers(0, 24), st.randoms(use_true_random=False), st.booleans())
def test_a_restored_run_goes_on_with_the_same_verdicts(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[tuple[int, float]],
    cut: int,
    shuffle: Any,
    torn: bool,
) -> None:
    rule = HyperTrick(**RULE)
    history = played(rule, events)
    directory = tmp_path_factory.mktemp("run") / "staging"
    before = scheduler()
    pickled = pickle.dumps(before)  # as Ray does, before the run, for `Tuner.restore`
    trials = trials_of(before, directory=directory)
    for *report, expected in history[:cut]:
        assert tell(before, trials, *report) == expected
    if torn:
        with journal(directory).open("a") as file:
            file.write('{"trial": 3, "pha')
    after: HyperTrickScheduler = pickle.loads(pickled)
    for trial in shuffle.sample(trials, len(trials)):  # Ray adds them in another order
        after.on_trial_add(None, trial)
    assert repr(after.rule.decisions) == repr(before.rule.decisions)
    for *report, expected in history[cut:]:
        assert tell(after, trials, *report) == expected
    assert repr(after.rule.decisions) == repr(rule.decisions)
    assert journal(directory).read_text().count("phase") == len(history)
    third: HyperTrickScheduler = pickle.loads(pickled)
    trials_of(third, directory=directory)
    assert repr(third.rule.decisions) == repr(rule.decisions)


@pytest.mark.parametrize("line", ["[]", "x", "{}", '{"trial": 9, "phase": 0}'])
def test_a_state_that_is_not_the_schedulers_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "state").write_text('{"trial": "id0"}\n' + line + "\n")
    with pytest.raises(ConfigurationError, match=r"state, line 2: not a scheduler's state"):
        scheduler().restore(str(tmp_path / "state"))


def test_a_scheduler_serves_one_run(tmp_path: Path) -> None:
    ours = scheduler()
    trials_of(ours, 2, tmp_path / "first")
    with pytest.raises(ConfigurationError, match="served another run"):
        trials_of(ours, 1, tmp_path / "second")


# Settings and bad input.


def test_metric_and_mode_may_come_from_the_tuner() -> None:
    ours = scheduler(metric=None, mode=None)
    assert ours.set_search_properties("score", "min", points_to_evaluate=None)
    trial = trials_of(ours, 1)[0]
    ours.on_trial_result(None, trial, result(1, 3.0))
    assert ours.rule.decisions[0].metric == -3.0
    assert ours.metric == "score"
    assert not ours.set_search_properties("score", None)
    assert not ours.set_search_properties(None, "max")
    assert ours.set_search_properties(None, None)
    with pytest.raises(ConfigurationError, match="mode = 'maximum'"):
        scheduler(metric=None, mode=None).set_search_properties("score", "maximum")


@pytest.mark.parametrize("settings", [{"metric": None}, {"mode": None}])
def test_a_metric_or_mode_that_nobody_gave_is_asked_for(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"HyperTrickScheduler or to tune\.TuneConfig"):
        trials_of(scheduler(**settings))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"phase_length": 0}, "phase_length = 0"),
        ({"phase_length": NAN}, "phase_length = nan"),
        ({"phase_length": "2"}, "phase_length = '2'"),
        ({"mode": "up"}, "mode = 'up'"),
    ],
)
def test_a_bad_setting_is_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        scheduler(**settings)


@pytest.mark.parametrize(
    ("outcome", "named"),
    [
        (
            {"training_iteration": 1, "loss": 2.0},
            "trial train_id0: its result has no 'score', only loss, training_iteration",
        ),
        ({"score": 1.0}, "trial train_id0: its result has no 'training_iteration', only score"),
        (result(1, None), "trial train_id0: score = None: expected a number"),
        (result(1, "0.5"), "trial train_id0: score = '0.5': expected a number"),
        (result(1, True), "trial train_id0: score = True: expected a number"),
        (result("1", 1.0), "trial train_id0: training_iteration = '1': expected a number"),  # type: ignore[arg-type]
        (result(NAN, 1.0), "trial train_id0: training_iteration = nan: a finite number"),
    ],
)
def test_a_result_that_cannot_be_judged_is_named(outcome: dict[str, Any], named: str) -> None:
    ours = scheduler()
    trial = trials_of(ours, 1)[0]
    with pytest.raises(ConfigurationError, match=named):
        ours.on_trial_result(None, trial, outcome)
    assert ours.rule.decisions == []


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.tune.schedulers", None)
    monkeypatch.delitem(sys.modules, "genkidama.plugins.hypertrick.ray_tune")
    with pytest.raises(ConfigurationError, match=r"pip install 'genkidama-rl\[ray\]'"):
        importlib.import_module("genkidama.plugins.hypertrick.ray_tune")


# A real search.


@pytest.fixture
def rays_directory() -> Iterator[Path]:
    """Where Ray keeps its sockets, whose paths may have some 100 characters, and its logs."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as name:
        (Path(name) / "ray").mkdir()
        yield Path(name)


def processes_of(session: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(process.pid) == session:
                found.append(process)
    return found


def run_ray(mode: str, directory: Path, rays_directory: Path) -> subprocess.CompletedProcess[str]:
    """Runs the search in a session of its own, of which no process may be left afterwards."""
    environment = {
        **os.environ,
        "RAY_TMPDIR": str(rays_directory),
        "RAY_AUTH_MODE": "disabled",  # or Ray writes a token into the home directory
        "RAY_USAGE_STATS_ENABLED": "0",
        # Despite its name: everything listens on 127.0.0.1 only.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "TUNE_GLOBAL_CHECKPOINT_S": "0",  # a checkpoint of the experiment after each event
    }
    command = [sys.executable, "-m", "tests.plugins.hypertrick.ray_search", mode, str(directory)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=200)
            if process.returncode == 0:
                assert psutil.wait_procs(processes_of(process.pid), timeout=30)[1] == []
        finally:
            for left in processes_of(process.pid):
                left.kill()
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def decisions_in(journal: str) -> list[Decision]:
    lines = [json.loads(line) for line in journal.splitlines()]
    assert len([line for line in lines if "phase" not in line]) == 12
    return [msgspec.convert(line, Decision) for line in lines if "phase" in line]


def check_against_the_rule(decisions: list[Decision], trials: dict[str, Any]) -> None:
    """The verdicts are those of the rule alone, and each trial ran as long as its verdicts say."""
    from tests.plugins.hypertrick.ray_search import FAULTY, PHASES, SLOPES, WORKERS

    rule = HyperTrick(workers=WORKERS, phases=PHASES, eviction_rate=0.25)
    assert repr(
        [rule.decide(decision.trial, decision.phase, decision.metric) for decision in decisions]
    ) == repr(decisions)
    assert len({(decision.trial, decision.phase) for decision in decisions}) == len(decisions)
    for number, slope in enumerate(SLOPES):
        own = [decision for decision in decisions if decision.trial == number]
        row = trials[str(number)]
        assert [decision.phase for decision in own] == list(range(len(own)))
        assert all(decision.verdict is Verdict.CONTINUE for decision in own[:-1])
        if number == FAULTY:
            assert (
                row["failed"]
                and row["iterations"] == 2
                and [decision.mode for decision in own][1:] == [Mode.FAILURE]
            )
            own.pop()
        else:
            assert not row["failed"]
            assert own[-1].verdict is Verdict.STOP or own[-1].phase == PHASES - 1
            assert row["iterations"] == 2 * len(own)
        assert [decision.metric for decision in own] == [
            slope * 2 * (decision.phase + 1) for decision in own
        ]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_search_survives_kill_9_and_goes_on_with_the_same_rule(
    tmp_path: Path, rays_directory: Path
) -> None:
    killed = run_ray("interrupted", tmp_path, rays_directory)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    kept = journal(tmp_path / "search").read_text()
    done = run_ray("restored", tmp_path, rays_directory)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    decisions = decisions_in(found["journal"])
    whole_lines = kept[: kept.rfind("\n") + 1]
    before = [line for line in whole_lines.splitlines() if "phase" in line]
    assert 5 <= len(before) < len(decisions)
    after = [line for line in found["journal"].splitlines() if "phase" in line]
    assert after[: len(before)] == before
    check_against_the_rule(decisions, found["trials"])
    assert sum(decision.verdict is Verdict.STOP for decision in decisions) >= 3
