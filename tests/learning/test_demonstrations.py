"""Demonstrations: what was recorded is what is read and drawn, whatever becomes of the file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import safetensors.numpy
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Algorithm
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning import demonstrations as module
from genkidama.learning.demonstrations import (
    DemonstrationReplay,
    DemonstrationWriter,
    MixedReplay,
    check_fits,
    load,
    stored,
)
from genkidama.learning.model import Model
from genkidama.learning.rollout import Transitions

PATHS = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def spaces(actions: gymnasium.Space[Any] | None = None, seen: Any = None) -> Any:
    return SimpleNamespace(
        observation_space=seen or Box(-np.inf, np.inf, (2,), np.float32),
        action_space=actions or Box(-2.0, 6.0, (1,), np.float32),
    )


def writer(path: Path, around: Any = None) -> DemonstrationWriter:
    return DemonstrationWriter(path, {"id": "Walk-v0"}, around or spaces(), "a test")


#: Of each episode: its steps, and what became of it.
episodes = st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=5)


def write(path: Path, found: list[tuple[int, bool]], first: int = 0) -> list[int]:
    """Writes episodes whose observations count, and whose rewards are their numbers; the size of
    the file after each."""
    file, sizes, number = writer(path), [], first
    for length, terminated in found:
        seen = [[n, -n] for n in range(number, number + length + 1)]
        file.add(
            seen,
            [[n % 8 - 2.0] for n in range(number, number + length)],
            list(range(number, number + length)),
            terminated,
            not terminated,
        )
        number += length + 1
        sizes.append(path.stat().st_size)
    file.close()
    return sizes


def model_of(around: Any = None, **changes: Any) -> Model:
    plain = {
        "environment": {"id": "Walk-v0"},
        "network": {"hidden": [4]},
        "algorithm": {"name": "sac", "gamma": 0.5, "start_steps": 1, "minibatch_size": 8},
        "replay": {"steps": 100},
    }
    return Model(Experiment.from_dict(plain).with_settings(changes), around or spaces())


@PATHS
@given(episodes)
def test_a_file_gives_back_what_was_written(tmp_path: Path, found: list[tuple[int, bool]]) -> None:
    path = tmp_path / "walk.steps"
    path.unlink(missing_ok=True)
    write(path, found)
    file = load(path)
    assert (file.environment, file.source, file.rest) == ("Walk-v0", "a test", 0)
    assert (file.observation_space, file.action_space) == tuple(vars(spaces()).values())
    assert file.steps == sum(length for length, _ in found)
    number = 0
    for block, (length, terminated) in zip(file.blocks, found, strict=True):
        assert block.observations[:, 0].tolist() == list(range(number, number + length + 1))
        assert block.rewards.tolist() == list(range(number, number + length))
        ends = [False] * (length - 1)
        assert block.terminated.tolist() == [*ends, terminated]
        assert block.truncated.tolist() == [*ends, not terminated]
        number += length + 1


@PATHS
@given(episodes, st.integers(0, 10**6))
def test_a_file_that_was_cut_keeps_its_whole_blocks_and_goes_on(
    tmp_path: Path, found: list[tuple[int, bool]], cut: int
) -> None:
    path = tmp_path / "walk.steps"
    path.unlink(missing_ok=True)
    sizes = write(path, found)
    whole = path.read_bytes()
    cut = sizes[0] + cut % (len(whole) - sizes[0] + 1)
    path.write_bytes(whole[:cut])
    kept = [size for size in sizes if size <= cut]
    file = load(path)
    assert len(file.blocks) == len(kept)
    assert file.rest == cut - kept[-1]
    assert (f"{file.rest} byte" in file.about("Walk-v0")) == (file.rest > 0)
    write(path, [(1, True)], first=500)
    again = load(path)
    assert len(again.blocks) == len(kept) + 1 and again.rest == 0
    assert again.blocks[-1].rewards.tolist() == [500.0]
    assert path.read_bytes()[: kept[-1]] == whole[: kept[-1]]


@PATHS
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_a_flipped_bit_is_found(tmp_path: Path, place: int, bits: int) -> None:
    """Or the block that it is in is no longer whole, which is said, too."""
    path = tmp_path / "walk.steps"
    path.unlink(missing_ok=True)
    sizes = write(path, [(3, True), (2, False), (4, True)])
    content = bytearray(path.read_bytes())
    place %= len(content)
    content[place] ^= bits
    path.write_bytes(content)
    block = sum(size <= place for size in sizes)
    try:
        file = load(path)
    except ConfigurationError as error:
        said = str(error)
        assert str(path) in said and "\n" not in said
        if block and "damaged" in said:
            assert f"block {block + 1} is damaged" in said
            assert f"`head -c {sizes[block - 1]} {path} > FILE` keeps the {block} block" in said
    else:
        assert len(file.blocks) == block and file.rest == len(content) - sizes[block - 1]


def test_files_can_be_joined_and_a_block_is_a_safetensors_file(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    (size, _) = write(one, [(3, True), (2, True)])
    write(two, [(4, False)], first=50)
    both = tmp_path / "both"
    both.write_bytes(one.read_bytes() + two.read_bytes())
    assert [len(block.rewards) for block in load(both).blocks] == [3, 2, 4]
    found = safetensors.numpy.load(one.read_bytes()[:size])
    assert found["observations"].tolist() == [[0, 0], [1, -1], [2, -2], [3, -3]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file of demonstrations; `genkidama play FILE.toml"),
        (b"", "has no whole episode; `genkidama play FILE.toml"),
        (b"seed = 0\n\n[environment]\n", "is no file of demonstrations: its header has no length"),
        (b"\x04" + bytes(7) + b"null", "is no file of demonstrations: it has no header of steps"),
        (
            safetensors.numpy.save({"w": np.zeros(3, np.float32)}, {"format": "genkidama-1"}),
            "its format is 'genkidama-1', expected 'genkidama-steps-1'",
        ),
    ],
)
def test_another_file_is_refused_and_never_written_to(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=said):
        load(path)
    if content:
        with pytest.raises(ConfigurationError, match="is no file of demonstrations"):
            writer(path)
        assert path.read_bytes() == content


def test_a_short_file_of_somebody_elses_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "note"
    path.write_bytes(b"mine\n")
    with pytest.raises(ConfigurationError, match="has no whole block of steps; remove it"):
        writer(path)
    assert path.read_bytes() == b"mine\n"


def test_a_file_is_of_one_environment_and_of_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "walk.steps"
    write(path, [(2, True)])
    with pytest.raises(ConfigurationError, match="has steps of Walk-v0, whose spaces are others"):
        writer(path, spaces(Discrete(3)))
    first = writer(path)
    with pytest.raises(ConfigurationError, match="another process is recording there"):
        writer(path)
    first.close()
    other = tmp_path / "other.steps"
    more = DemonstrationWriter(other, {"id": "Run-v0"}, spaces(Discrete(3)), "a test")
    more.add([[0, 0], [1, 1]], [2], [0.0], True, False)
    more.close()
    path.write_bytes(path.read_bytes() + other.read_bytes())
    with pytest.raises(ConfigurationError, match="block 2 has other spaces than the first one"):
        load(path)


def test_a_recording_without_a_step_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "walk.steps"
    writer(path).close()
    assert not path.exists()
    with pytest.raises(EnvironmentFailure, match="cannot be written: No such file"):
        writer(tmp_path / "nowhere" / "walk.steps")
    with pytest.raises(ConfigurationError, match="cannot be recorded; put a wrapper"):
        writer(path, spaces(Dict({"a": Discrete(2)})))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rewards": [np.nan, 0.0]}, "its rewards hold NaN or infinity"),
        ({"observations": [[0, 0], [np.inf, 0], [0, 0]]}, "its observations hold NaN or infinity"),
        ({"actions": [[0.0], [np.nan]]}, "its actions hold NaN or infinity"),
        ({"observations": [[0, 0], [1, 1]]}, "expected float32 [3, 2]"),
        ({"actions": [[0.0, 1.0], [0.0, 1.0]]}, "expected float32 [2, 1]"),
    ],
)
def test_what_no_environment_gives_is_not_written_and_refused(
    tmp_path: Path, change: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "walk.steps"
    file = writer(path)
    good: dict[str, Any] = {"observations": [[0, 0], [1, 1], [2, 2]], "actions": [[0.0], [1.0]]}
    file.add(**good, rewards=[0.0, 0.0], terminated=True, truncated=False)
    bad = {**good, "rewards": [0, 0], **change}
    if "NaN" in said:
        assert not file.add(**bad, terminated=True, truncated=False)
        assert len(load(path).blocks) == 1
    with monkeypatch.context() as patch:  # as if somebody else had written it
        patch.setattr(module, "are_numbers", lambda rows: np.ones(len(rows), np.bool_))
        file.add(**bad, terminated=True, truncated=False)
    file.close()
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    assert "block 2 is damaged" in str(caught.value) and said in str(caught.value)


@pytest.mark.parametrize(
    ("around", "said"),
    [
        (spaces(seen=Box(-1, 1, (3,), np.float32)), "observations float32 [2], but here they are"),
        (spaces(seen=Box(0, 255, (2,), np.uint8)), "here they are uint8 [2]"),
        (spaces(Box(-2.0, 6.0, (2,), np.float32)), "with actions in Box(-2.0, 6.0, (1,), float32)"),
        (spaces(Box(-2.0, 0.5, (1,), np.float32)), "block 1: action [1.0] is none of Box(-2.0"),
    ],
)
def test_steps_of_other_spaces_are_refused_by_name(tmp_path: Path, around: Any, said: str) -> None:
    path = tmp_path / "walk.steps"
    write(path, [(5, True)])
    with pytest.raises(ConfigurationError) as caught:
        check_fits(load(path), model_of(around))
    assert str(caught.value).startswith(f"algorithm.demonstrations: {path}: ")
    assert said in str(caught.value)


@pytest.mark.parametrize("actions", [Discrete(4, dtype=np.int32), MultiBinary(3)])
def test_steps_fit_the_environment_that_they_were_recorded_in(tmp_path: Path, actions: Any) -> None:
    path = tmp_path / "walk.steps"
    file = writer(path, spaces(actions))
    file.add([[0.0, 0.0]] * 2, [actions.sample()], [0.0], True, False)
    file.close()
    check_fits(load(path), model_of(spaces(actions), **{"algorithm.name": "ppo"}))


def test_actions_are_stored_as_the_learners_head_does(tmp_path: Path) -> None:
    model = model_of(spaces(Box(np.array([-2, 0]), np.array([6, 1]), dtype=np.float32)))
    taken = np.array([[-2.0, 0.5], [6.0, 0.0], [2.0, 1.0]], np.float32)
    kept = stored(taken, model)
    assert kept.tolist() == [[-1.0, 0.0], [1.0, -1.0], [0.0, 1.0]]
    again = np.array([model.head.to_environment(action) for action in kept])
    np.testing.assert_allclose(again, taken)
    dqn = {"algorithm.name": "dqn", "algorithm.start_steps": 1}
    counted = model_of(spaces(Discrete(3, start=5)), **dqn)
    assert stored(np.array([5, 7, 6]), counted).tolist() == [[0], [2], [1]]
    whole = model_of(spaces(Box(-2, 3, (1,), np.int64)), **{**dqn, "algorithm.name": "vtrace"})
    assert stored(np.array([[-2.0], [3.0]], np.float32), whole).tolist() == [[0], [5]]


@PATHS
@given(episodes, st.integers(1, 4))
def test_drawn_steps_are_those_of_the_file_with_n_rewards(
    tmp_path: Path, found: list[tuple[int, bool]], steps: int
) -> None:
    path = tmp_path / "walk.steps"
    path.unlink(missing_ok=True)
    write(path, found)
    model = model_of(**{"environment.reward_scale": 0.5})
    replay = DemonstrationReplay([str(path)], model, np.random.default_rng(0))
    assert len(replay) == sum(length for length, _ in found)
    # Each step's episode: its last number, and whether it terminated.
    ends: dict[int, tuple[int, bool]] = {}
    number = 0
    for length, terminated in found:
        ends |= dict.fromkeys(range(number, number + length), (number + length, terminated))
        number += length + 1
    drawn = replay.sample(200, steps)
    for row, n in enumerate(drawn.observations[:, 0].astype(int).tolist()):
        end, terminated = ends[n]
        count = min(steps, end - n)
        over = terminated and n + count == end
        assert drawn.actions[row] == pytest.approx([(n % 8 - 4.0) / 4.0])
        assert drawn.rewards[row] == sum(0.5 * (n + k) * 0.5**k for k in range(count))
        assert drawn.following[row].tolist() == [n + count, -n - count]
        assert drawn.terminated[row] == over
        assert drawn.truncated[row] == (not terminated and n + count == end)
        assert drawn.discounts[row] == (0.0 if over else 0.5**count)
        assert drawn.places[row] < 0
    once = replay.sample(len(replay), replacement=False)
    assert sorted(once.observations[:, 0].tolist()) == sorted(ends)
    with pytest.raises(ValueError, match="are there"):
        replay.sample(len(replay) + 1, replacement=False)


class Own:
    """A replay whose steps see −1."""

    def __init__(self, size: int = 50) -> None:
        self._size = size
        self.asked: list[tuple[int, dict[str, Any]]] = []
        self.errors: list[float] = []

    def __len__(self) -> int:
        return self._size

    def sample(self, count: int, **given: Any) -> Transitions:
        self.asked.append((count, given))

        def column(value: float) -> Any:
            return np.full(count, value, np.float32)

        return Transitions(
            np.full((count, 2), -1.0, np.float32),
            np.zeros((count, 1), np.float32),
            column(7.0),
            np.full((count, 2), -1.0, np.float32),
            np.zeros(count, np.bool_),
            np.zeros(count, np.bool_),
            column(0.0),
            column(0.5),
            column(0.25),
            np.arange(count),
        )

    def prioritize(self, places: Any, errors: Any) -> None:
        self.errors += errors.tolist()
        assert (places >= 0).all()

    def trajectories(self, *_: Any, **__: Any) -> Any:
        return "trajectories"


@pytest.mark.parametrize(("share", "taken"), [(0.5, 4), (0.25, 2), (0.0, 0), (1.0, 8), (0.3, 2)])
def test_each_minibatch_has_its_share_of_demonstrations(
    tmp_path: Path, share: float, taken: int
) -> None:
    path = tmp_path / "walk.steps"
    write(path, [(5, True), (9, False)])
    shown = DemonstrationReplay([str(path)], model_of(), np.random.default_rng(0))
    own: Any = Own()
    replay = MixedReplay(own, shown, Algorithm(demonstration_share=share, minibatch_size=8))
    assert len(replay) == 50, "start_steps are the learner's own"
    for count in (8, 24):
        drawn = replay.sample(count, steps=2, correction=0.5 if 0 < taken < 8 else None)
        theirs = drawn.observations[:, 0] >= 0.0
        assert theirs.reshape(-1, 8).sum(1).tolist() == [taken] * (count // 8)
        assert (drawn.places < 0).tolist() == theirs.tolist()
        assert (drawn.weights == np.where(theirs, 1.0, 0.25)).all()
        assert (drawn.rewards[~theirs] == 7.0).all()
        replay.prioritize(drawn.places, np.arange(count))
        assert own.errors == np.flatnonzero(~theirs).tolist()
        own.errors.clear()
    if 0 < taken < 8:
        given = {"replacement": True, "steps": 2, "correction": 0.5}
        assert own.asked == [(8 - taken, given), (24 - 3 * taken, given)]
    assert (replay.sample(8, own=True).observations == -1.0).all()
    assert replay.trajectories(1, 2) == "trajectories"
