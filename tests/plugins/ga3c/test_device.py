"""GA3C on a device; what needs a GPU is skipped without one."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from genkidama.config.experiment import Experiment
from genkidama.plugins.ga3c import engine
from genkidama.plugins.ga3c.engine import Predictor, Trainer
from genkidama.plugins.ga3c.slots import put
from tests.child.problems import bandit_solved
from tests.helpers import until
from tests.learning.devices import DEVICES, NEEDS_A_GPU
from tests.plugins.ga3c.test_backend import bandit, exchange, train, training, updates
from tests.plugins.ga3c.test_engine import Bench, at_work, experiment


def on_gpu(settings: Experiment, **changes: float) -> Experiment:
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    return settings.with_settings({"ga3c.device": "cuda", **changed})


def answered(slots: Any) -> bool:
    return bool(slots.answered[1] == slots.asked[1])


@pytest.mark.parametrize("device", DEVICES)
def test_it_predicts_as_the_cpu_does_and_learns_on_the_device(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at_work(experiment()) as here:
        monkeypatch.setattr(engine, "find_device", lambda *_: torch.device(device))
        _predicts_and_learns(here, device)


def _predicts_and_learns(here: Bench, device: str) -> None:
    with at_work(experiment()) as there:
        weights, slots = there.engine.weights, there.slots
        assert weights.vector.device.type == torch.device(device).type
        weights.vector.copy_(torch.from_numpy(here.slots.weights))
        for each in (here, there):
            each.slots.observations[:] = [0.5, -1.0, 2.0]
            each.engine.resize(1, 0)
            each.slots.asked[1] += 1
            put(each.engine.predictions_in, (1,))
            until(partial(answered, each.slots))
        row = slots.position[1]
        assert slots.values[row] == pytest.approx(here.slots.values[row], rel=1e-3)
        before, copy = weights.vector.cpu().clone(), slots.weights.copy()
        there.engine.resize(1, 1)
        there.use()
        if weights.vector.is_cuda:
            torch.cuda.synchronize()  # the trainer has a stream of its own
        assert (weights.vector.cpu() != before).any() and (slots.weights == copy).all()


@NEEDS_A_GPU
def test_each_thread_has_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[int] = []
    for kind in (Predictor, Trainer):
        work = kind._work

        def noting(thread, work=work) -> None:  # type: ignore[no-untyped-def]
            streams.append(torch.cuda.current_stream().cuda_stream)
            work(thread)

        monkeypatch.setattr(kind, "_work", noting)
    with at_work(on_gpu(experiment())) as there:
        there.engine.resize(2, 2)
        there.use()
        until(lambda: len(streams) == 4)
    assert len({*streams, torch.cuda.default_stream().cuda_stream}) == 5


@NEEDS_A_GPU
async def test_an_exchange_reaches_the_weights_on_the_device() -> None:
    """θ_C ← θ_C + β(θ_P − θ_sent), of weights that hardly learn."""
    async with training(on_gpu(bandit(), optimizer__learning_rate=1e-12)) as backend:
        await backend.due()
        backend.take_work()
        sent = backend.snapshot()
        backend.blend(sent, sent + 10.0, 0.5)
        backend.release()
        await exchange(backend)
        np.testing.assert_allclose(backend.snapshot(), sent + 5.0, rtol=1e-4)
        backend.reset(sent)
        await exchange(backend)
        np.testing.assert_allclose(backend.snapshot(), sent, rtol=1e-4, atol=1e-6)


@NEEDS_A_GPU
async def test_an_engine_that_is_killed_goes_on_from_the_last_exchange() -> None:
    settings = on_gpu(bandit())
    solved = bandit_solved(settings)
    async with training(settings) as backend:
        initial = backend.snapshot()
        await train(backend, solved)
        learned, first = backend.snapshot(), backend._engine
        assert first is not None and backend.state()["state"].any()
        first.kill()
        await train(backend, lambda _: backend._engine is not first)
        before = updates(backend)
        await train(backend, lambda _: updates(backend) > before + 50)
        moved = np.abs(backend.snapshot() - learned).max()
        assert moved < 0.5 * np.abs(learned - initial).max()
