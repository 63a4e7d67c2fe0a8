"""Evaluations: of weights that nobody trained, by real processes."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from genkidama.__main__ import main
from genkidama.config import plugin
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.plugins.render import playback
from genkidama.runs import evaluation
from genkidama.runs import run as run_module
from genkidama.runs.checkpoint import CheckpointFolder, load, save
from genkidama.runs.evaluation import (
    Evaluation,
    Evaluations,
    Job,
    Players,
    evaluate,
    evaluate_trained,
)
from genkidama.runs.evaluation_worker import play
from genkidama.runs.policy import Policy
from genkidama.runs.run import Run
from genkidama.runs.run import Run as Result
from tests.helpers import ROOT, command, gone, one_forkserver, small, until, untrained


@pytest.fixture(scope="module", autouse=True)
def shared_forkserver() -> Iterator[None]:
    """One for the processes of all evaluations here, as a command has one."""
    with one_forkserver():
        yield


def of(*returns: float, threshold: float | None = None, greedy: bool = False) -> Evaluation:
    path = Path("best.safetensors")
    return Evaluation(np.array(returns), path, threshold, greedy, 0, "Moon-v1", "Moon-v1")


def test_the_figures_are_those_of_the_returns() -> None:
    found = of(1.0, 2.0, 3.0, 6.0)
    assert (found.mean, found.minimum) == (3.0, 1.0)
    assert found.std == pytest.approx(np.sqrt(3.5))
    assert found.quantiles == {
        "5%": pytest.approx(1.15),
        "25%": 1.75,
        "50%": 2.5,
        "75%": 3.75,
        "95%": pytest.approx(5.55),
    }


@pytest.mark.parametrize(("threshold", "solved"), [(None, None), (3.0, True), (3.1, False)])
def test_solved_is_a_mean_that_reaches_the_threshold(
    threshold: float | None, solved: bool | None
) -> None:
    assert of(2.0, 4.0, threshold=threshold).solved is solved


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (of(2.0, 4.0, threshold=3.0), "3.0 ± 1.0 over 2 episodes, sampled: solved (at least 3)"),
        (
            of(2.0, 4.0, threshold=200.0, greedy=True),
            "3.0 ± 1.0 over 2 episodes, greedy: not solved (below 200)",
        ),
        (of(2.0, 4.0), "3.0 ± 1.0 over 2 episodes, sampled: no threshold"),
        (
            replace(of(2.0, 4.0), trained_in="envpool:Moon-v1"),
            "3.0 ± 1.0 over 2 episodes of Moon-v1 (trained in envpool:Moon-v1), sampled: "
            "no threshold",
        ),
        (
            replace(of(2.0, 4.0), environment="envpool:Moon-v1", trained_in="envpool:Moon-v1"),
            "3.0 ± 1.0 over 2 episodes of envpool:Moon-v1, sampled: no threshold",
        ),
    ],
)
def test_it_reads_well(found: Evaluation, words: str) -> None:
    assert str(found).splitlines()[0] == words


def test_processes_play_what_one_would_play_alone(tmp_path: Path) -> None:
    run = untrained(tmp_path, small())
    environment = make_environment(small().environment)
    model = Model(small(), environment)
    model.numbers[:] = run.load().vector
    alone = play(model, environment, range(3), 3, greedy=False)
    numpy: Any = {"seed": np.int64(3), "deterministic": np.False_}
    together = evaluate(run, episodes=3, cores=2, **numpy)
    assert together.returns.tolist() == alone
    assert together.threshold == 475.0
    assert run.evaluation == {**together.to_dict(), "returns": alone}
    assert [line["mean_return"] for line in run.history()] == [together.mean]


def test_a_policy_of_envpools_is_played_in_gymnasiums_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And in another one only if it is named. None of this needs EnvPool."""
    with monkeypatch.context() as patch:
        cart_pole = make_environment(small().environment)
        patch.setattr("genkidama.learning.environments.make_environment", lambda _: cart_pole)
        options = {"num_threads": 1, "max_episode_steps": 9}
        settings = small(environment={"id": "envpool:CartPole-v1", "options": options})
        run = untrained(tmp_path / "run", settings)
    found = evaluate(run, episodes=2, cores=1)
    assert (found.environment, found.threshold) == ("CartPole-v1", 475.0)
    assert str(found).startswith(
        f"{found.mean:.1f} ± {found.std:.1f} over 2 episodes of CartPole-v1 "
        "(trained in envpool:CartPole-v1), sampled: "
    )
    assert found.returns.max() <= 9.0  # the option of both is kept, the one of EnvPool's is not
    with pytest.raises(ConfigurationError) as raised:
        evaluate(run, episodes=1, cores=1, environment="Acrobot-v1")
    assert str(raised.value).endswith(
        "; the policy was trained in 'envpool:CartPole-v1': "
        "--environment envpool:CartPole-v1 plays that"
    )
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_envpools_own_environment_is_played_if_it_is_named(tmp_path: Path) -> None:
    pytest.importorskip("envpool", reason="pip install 'genkidama-rl[envpool]': 300 MB")
    environment = {"id": "envpool:CartPole-v1", "options": {"max_episode_steps": 9}}
    run = untrained(tmp_path / "run", small(environment=environment))
    found = evaluate(run, episodes=2, cores=1, environment="envpool:CartPole-v1")
    assert found.environment == found.trained_in == "envpool:CartPole-v1"
    assert found.threshold == 475.0 and found.returns.max() <= 9.0


def test_episodes_begin_where_they_are_told_and_the_best_checkpoint_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = untrained(tmp_path / "run", small())
    (tmp_path / "starts.json").write_text(json.dumps([{"state": [0.0, 0.0, 0.2, 3.0]}, [1, 1, 1]]))
    starts = str(tmp_path / "starts.json")
    found = evaluate(run, episodes=2, cores=1, starts=Path(starts))
    assert found.returns[0] == 1.0  # from the state it falls at the first step
    assert found.returns[1] > 1.0
    assert run.evaluation is not None and run.evaluation["starts"] == starts
    assert f"over 2 episodes from {starts}, sampled: " in str(found)
    # Of two checkpoints it is the one that earned more, though it is older.
    worse = untrained(tmp_path / "run", small(), version=2)
    asked: list[tuple[Path | None, int]] = []
    means = {run.checkpoints[0]: 9.0, worse.checkpoints[1]: 5.0}
    (damaged := run.path / "checkpoints/version-0000000003.safetensors").write_bytes(b"torn")

    def play(
        self: Players, jobs: list[Job], seed: int, watch: Callable[[float], None]
    ) -> list[dict[str, object]]:
        asked.extend((checkpoint.path, seed) for checkpoint, _ in jobs)
        watch(0.0)
        answer = {"threshold": None, "environment": "CartPole-v1", "greedy": False}
        played = [(means.get(each.path, 9.0), len(episodes)) for each, episodes in jobs]
        return [answer | {"returns": [mean] * count} for mean, count in played]

    monkeypatch.setattr(Players, "play", play)
    chosen = evaluate(run, episodes=4, choose=2, cores=1)
    assert f"warning: passed over {damaged}: not a readable" in capsys.readouterr().err
    # Other episodes than those that count.
    assert asked == [(path, 1) for path in reversed(means)] + [(run.checkpoints[0], 0)] * 4
    assert (chosen.checkpoint, chosen.mean) == (run.checkpoints[0], 9.0)
    means[worse.checkpoints[1]] = math.nan
    assert evaluate(run, episodes=4, choose=2, cores=1).checkpoint == run.checkpoints[0]
    means[worse.checkpoints[1]] = 5.0
    assert run.best is None
    # At the end of `train` it becomes the best, unless the evaluation is too short for that.
    assert evaluate_trained(run, 99, 0, progress=False).mean == 5.0 and run.best is None
    shown: list[Any] = []
    show = lambda *counts: shown.append(counts) or nullcontext(shown.append)  # noqa: E731
    monkeypatch.setattr(plugin, "find", lambda *_: show)
    found = evaluate_trained(run, 100, 0, progress=True)
    assert shown == [(40, 2), 0.0, (100,), 0.0]
    assert found.mean == 9.0 and found.checkpoint == run.best
    assert found.weights == "best weights, version 1, the best of 2 by 20 episodes each"
    assert run.best.read_bytes() == run.checkpoints[0].read_bytes()


def test_the_weights_that_are_played_are_those_that_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = untrained(tmp_path / "run", small())
    expected = evaluate(run, episodes=3, cores=1).returns
    play, path = Players.play, run.checkpoints[0]
    found = load(path)

    def replaced(self: Players, *given: Any) -> list[dict[str, Any]]:
        save(path, found.signature, -3.0 * found.vector, found.snapshot)  # as a parent does
        return play(self, *given)

    monkeypatch.setattr(Players, "play", replaced)
    assert evaluate(run, episodes=3, cores=1).returns.tolist() == expected.tolist()
    assert evaluate(run, episodes=3, cores=1).returns.tolist() != expected.tolist()


def test_the_best_that_is_chosen_plays_though_another_was_the_best_before(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", small())
    found = run.load()
    ways = 5.0 * found.vector, 5.0 * found.vector[::-1].copy()
    means = []
    for vector in ways:
        save(file := tmp_path / "some.safetensors", found.signature, vector, found.snapshot)
        means.append(evaluate(file, episodes=20, cores=1, seed=1).mean)
    good, bad = np.argmax(means), np.argmin(means)
    save(run.checkpoints[0], found.signature, ways[good], found.snapshot)
    CheckpointFolder(run.checkpoints[0].parent).save_best(
        found.signature, ways[bad], found.snapshot
    )
    expected = evaluate(run.checkpoints[0], episodes=100, cores=1).returns.tolist()
    assert evaluate_trained(run, 100, 0, progress=False).returns.tolist() == expected


def test_the_end_of_a_run_is_evaluated_though_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = untrained(tmp_path / "run", small())

    def full(path: Path, content: bytes, concurrent: bool) -> None:
        raise EnvironmentFailure(f"{path}: no space")

    for module in (evaluation, run_module):
        monkeypatch.setattr(module, "write_atomically", full)
    assert evaluate_trained(run, 100, 0, progress=False).mean > 0.0
    said = capsys.readouterr().err
    assert "warning: the best weights stay as they were: " in said
    assert "warning: this evaluation is not recorded: " in said


def test_a_file_is_named_from_its_folder_and_another_task_has_a_goal_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = untrained(tmp_path / "run", Experiment.from_dict(small().to_dict() | {"solved": 30.0}))

    def play(self: Players, jobs: list[Job], seed: int, _: object) -> list[dict[str, object]]:
        return [{"threshold": 195.0, "environment": "any", "greedy": False, "returns": [9.0]}]

    monkeypatch.setattr(Players, "play", play)
    monkeypatch.chdir(run.path / "checkpoints")
    for environment, threshold in ((None, 30.0), ("CartPole-v1", 30.0), ("CartPole-v0", 195.0)):
        found = evaluate(run.final.name, episodes=1, cores=1, environment=environment)
        assert found.threshold == threshold


def test_several_runs_are_worth_the_mean_of_their_means() -> None:
    together = Evaluations((of(1.0, 3.0), of(8.0), of(2.0)))
    assert (together.mean, together.std) == (4.0, pytest.approx(np.sqrt(8.0)))
    assert str(together) == "4.0 ± 2.8 over 3 runs, the least 2.0"
    assert [run["mean"] for run in together.to_dict()["runs"]] == [2.0, 8.0, 2.0]


def test_the_command_prints_one_object_whatever_the_environment_prints(tmp_path: Path) -> None:
    run = untrained(
        tmp_path / "run",
        small(environment={"id": "tests.tiny:Faulty", "options": {"fault": "print"}}),
    )
    said = command(
        tmp_path, f"genkidama evaluate {run.final} --episodes 1 --seed 7 --json --allow tests.tiny"
    )
    assert (said.code, said.err) == (0, "")
    assert run.evaluation is None  # a checkpoint's evaluation is nobody's but the caller's
    assert json.loads(said.out) == {
        "mean": 10.0,
        "std": 0.0,
        "minimum": 10.0,
        "quantiles": {"5%": 10.0, "25%": 10.0, "50%": 10.0, "75%": 10.0, "95%": 10.0},
        "solved": None,
        "threshold": None,
        "episodes": 1,
        "greedy": False,
        "seed": 7,
        "checkpoint": str(run.final),
        "version": 1,
        "environment": "tests.tiny:Faulty",
        "starts": None,
    }


@pytest.mark.slow
def test_an_evaluation_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    environment = {"id": "tests.tiny:Faulty", "options": {"fault": "sleep"}}
    run = untrained(tmp_path / "run", small(environment=environment))
    command = [sys.executable, "-m", "genkidama", "evaluate", str(run.path), "--episodes", "2"]
    command += ["--allow", "tests.tiny"]
    program = psutil.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    playing = until(lambda: program.children(recursive=True)[1:], seconds=30.0)
    program.kill()
    program.wait()
    until(lambda: gone(*(one.pid for one in playing)), "their end", 20.0)


def test_an_environment_that_fails_is_an_error_of_one_line(tmp_path: Path) -> None:
    environment = {"id": "tests.tiny:Faulty", "options": {"fault": "raise", "after": 1}}
    run = untrained(tmp_path / "run", small(environment=environment))
    with pytest.raises(EnvironmentFailure) as raised:
        evaluate(run, episodes=2, cores=1)
    log = run.path / "logs" / "evaluation.log"
    assert str(raised.value) == (
        "playing episodes fails: ValueError: the cable is loose "
        "(studies/faults/faulty.py:61, in _meet); "
        f"the whole traceback is in {log}"
    )
    assert 'faulty.py", line 61, in _meet\n' in log.read_text()


#: Somebody else's settings, each with what a trap in them would run.
TRAPS = {
    "environment.id": {"environment": {"id": "trap:Trap"}},
    "environment.wrappers[0].name": {"environment": {"wrappers": [{"name": "trap:Trap"}]}},
    "network.name": {"network": {"name": "trap:Trap"}},
    "algorithm.name": {"algorithm": {"name": "trap:Trap"}},
}


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that the module `trap` makes when it is imported, here or in a process."""
    sprung = tmp_path / "sprung"
    (tmp_path / "trap.py").write_text(
        f"open({str(sprung)!r}, 'w').close()\n"
        "from gymnasium.envs.classic_control import CartPoleEnv as Trap\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield sprung
    sys.modules.pop("trap", None)


def with_trap(folder: Path, settings: dict[str, Any]) -> Run:
    """A run directory whose settings somebody has changed, in all its files."""
    run = untrained(folder, small())
    found = run.load()
    for section, keys in settings.items():
        found.snapshot.experiment[section] |= keys
    save(run.final, found.signature, found.vector, found.snapshot)
    (folder / "experiment.toml").write_text(found.experiment.to_toml())
    return Run(folder)


@pytest.mark.parametrize("key", TRAPS)
def test_what_a_file_names_is_imported_only_if_it_is_allowed(
    tmp_path: Path, trap: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = with_trap(tmp_path / "run", TRAPS[key])
    ways: dict[str, Callable[[], object]] = {
        "Policy.load": lambda: Policy.load(run.final),
        "run.policy": lambda: Result(run.path).policy(),
        "play": lambda: playback.play(run.path, video=tmp_path / "film.gif"),
    }
    for way in ways.values():
        with pytest.raises(ConfigurationError) as raised:
            way()
        assert str(raised.value) == (
            f"{run.final}: {key} = 'trap:Trap': a file may not have 'trap' imported; "
            'if that is your own: --allow trap, in Python allow=["trap"]'
        )
    for words in (
        ["signature", f"{run.path}/experiment.toml"],
        ["train", "--resume", f"{run.path}"],
    ):
        assert main(words) == 2
        assert "may not have 'trap' imported" in capsys.readouterr().err
    assert not trap.exists()


def test_an_evaluation_imports_what_is_allowed_and_nothing_else(tmp_path: Path, trap: Path) -> None:
    run = with_trap(tmp_path / "run", TRAPS["environment.id"])
    for target in (run.path, run.final, run):
        with pytest.raises(ConfigurationError, match="may not have 'trap' imported"):
            evaluate(target, episodes=1, cores=1)
    # What the user names is the user's choice.
    evaluate(run, episodes=1, cores=1, environment="CartPole-v1")
    assert not trap.exists()
    evaluate(run.path, episodes=1, cores=1, allow=["trap"])
    assert trap.exists()
    evaluate(Run(run.path, ("trap",)), episodes=1, cores=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"choose": -1}, "choose = -1"),
        ({"cores": 0}, "cores = 0"),
    ],
)
def test_numbers_out_of_range_are_the_users_mistake(
    tmp_path: Path, options: dict[str, int], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        evaluate(tmp_path, **options)  # type: ignore[arg-type]


def test_a_watcher_that_fails_ends_the_processes(tmp_path: Path) -> None:
    def watch(value: float) -> None:
        raise KeyError("my bug")

    run = untrained(tmp_path / "run", small())
    request = {"greedy": False, "environment": None, "starts": None, "recorded": None, "allow": []}
    players = Players(request, run.load().experiment, 2, tmp_path / "evaluation.log")
    with pytest.raises(KeyError), players:
        players.play([(run.load(), [number]) for number in range(8)], 0, watch)
    assert not [one for one in psutil.Process().children(recursive=True) if "task" in one.name()]


def test_the_loss_of_a_process_that_joined_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = threading.Event()

    def first() -> Iterator[Any]:
        yield 0.0  # its environment is built
        yield 1.0  # an episode, on which the other joins
        assert lost.wait(30.0)
        yield {"returns": [1.0]}

    def second() -> Iterator[Any]:
        yield 0.0
        lost.set()
        raise EnvironmentFailure("playing episodes fails: the process ended")

    processes = iter((first(), second()))

    class Played:
        def __init__(self, *_: object) -> None:
            self.receive = next(processes).__next__

        def send(self, _: object) -> None: ...
        def kill(self) -> None: ...
        def close(self) -> None: ...

    monkeypatch.setattr(evaluation, "Task", Played)
    monkeypatch.setattr(evaluation, "_START_SECONDS", -1.0)
    weights = untrained(tmp_path / "run", small()).load()
    players = Players({}, small(), 2, tmp_path / "evaluation.log")
    with pytest.raises(EnvironmentFailure, match="the process ended"), players:
        players.play([(weights, [0]), (weights, [1])], 0, lambda _: None)


@pytest.fixture(scope="module")
def returns(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The returns of nine episodes that one process plays."""
    run = untrained(tmp_path_factory.mktemp("plain"), small())
    found: list[float] = evaluate(run, episodes=9, cores=1, seed=5).returns.tolist()
    return found


@pytest.mark.parametrize(
    ("options", "builders"),
    [({}, 1), ({"pace": 0.02}, 3), ({"pace": 0.02, "alone": True}, 3)],
    ids=["quick", "slow", "refused"],
)
def test_no_environment_is_built_in_vain(
    options: dict[str, Any],
    builders: int,
    returns: list[float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if options:
        monkeypatch.setattr("genkidama.runs.evaluation._START_SECONDS", 0.05)
    notes = tmp_path / "notes"
    environment = {"id": "tests.owning:Watched", "options": {"notes": str(notes), **options}}
    run = untrained(tmp_path / "run", small(environment=environment))
    notes.unlink()
    found = evaluate(run, episodes=9, cores=3, seed=5)
    assert len(notes.read_text().split()) == builders
    assert found.returns.tolist() == returns


@pytest.mark.parametrize("settings", [{"exclusive": True}, {"period": 0.001}], ids=str)
def test_a_device_or_a_clock_has_one_process(settings: dict[str, Any], tmp_path: Path) -> None:
    experiment = small(environment={**settings, "lanes": 1})
    assert Players({}, experiment, 3, tmp_path / "evaluation.log").most == 1
    run = untrained(tmp_path / "run", experiment)
    assert len(evaluate(run).returns) == len(evaluate_trained(run, None, 0, False).returns) == 10
    assert evaluation._usual_episodes(small()) == 500
