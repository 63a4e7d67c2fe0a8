"""The kept inputs of each target, some mutations of them, and the fuzzer's own parts."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import __main__ as command
from tests.fuzzing import corpus
from tests.fuzzing.targets import TARGETS


@cache
def seeds(name: str) -> list[bytes]:
    return TARGETS[name].seeds()


@pytest.mark.parametrize("name", TARGETS)
def test_no_kept_input_fails(name: str) -> None:
    inputs = [*corpus.load(name), *seeds(name)]
    assert inputs
    for data in [*inputs, b"", b"\0", b"\xff" * 8]:
        TARGETS[name].run(data)


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.data())
def test_no_mutation_fails(name: str, data: st.DataObject) -> None:
    target = TARGETS[name]
    found = data.draw(st.sampled_from(seeds(name)))
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    for _ in range(rng.choice([1, 1, 2, 4])):
        found = command.mutated(target, found, rng)
        target.run(found)


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in corpus.FOLDER.iterdir()) < 200_000
    assert {path.stem for path in corpus.FOLDER.iterdir()} <= set(TARGETS)


def fragile(data: bytes) -> None:
    """Fails for two reasons."""
    if b"!" in data:
        raise KeyError("!")
    if b"a" in data and b"z" in data:
        raise ValueError("a and z")


def test_an_input_that_fails_is_made_small() -> None:
    data = b"bcd" * 40 + b"a" + b"xy" * 30 + b"z" + b"qrs" * 20
    failure = command.failure(fragile, data)
    assert failure is not None and failure[0] is ValueError
    assert command.minimized(fragile, data, failure) == b"az"


def test_the_smallest_inputs_that_reach_the_same_code_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "FOLDER", tmp_path)
    began = seeds("join")
    inputs = [*began, *(seed + b" " for seed in began), b"no", b"none"]
    kept = corpus.smallest(TARGETS["join"].run, inputs, 10_000)
    assert b"no" in kept and b"none" not in kept and began[1] in kept
    assert not {seed + b" " for seed in began} & set(kept)
    corpus.store("join", kept)
    assert sorted(corpus.load("join")) == sorted(kept)
