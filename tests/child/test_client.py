"""A Child that exchanges over real sockets: with a real Parent, or with one that talks nonsense.

Most tests run in one event loop. Their backend learns nothing, so weights are compared by value.
"""

from __future__ import annotations

import asyncio
import io
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genkidama.child import client, uplink
from genkidama.child.backend import Work, make_backend
from genkidama.child.client import Child
from genkidama.child.ga3c.backend import GA3C
from genkidama.child.orchestrator import CoreOrchestrator
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.experiment import Experiment
from genkidama.local.progress import Progress
from genkidama.messages import (
    PROTOCOL,
    Goodbye,
    Hello,
    Join,
    Leave,
    Push,
    Refusal,
    Request,
    Weights,
    Welcome,
)
from genkidama.parent import Parent
from genkidama.role import Role
from genkidama.system import checkpoint as checkpoints
from genkidama.weights import DTYPE, Signature
from tests.helpers import (
    Answer,
    ConstantBackend,
    FakeParent,
    Serving,
    constant,
    eventually,
    history,
    running,
    small,
    url,
)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uplink, "BACKOFF_SECONDS", (0.01, 0.05))
    monkeypatch.setattr(uplink, "REPLY_SECONDS", 0.3)


def child_of(parent: Parent, name: str = "pi", **options: Any) -> Child:
    return Child(url(parent.address), name=name, **options)


def blended(ours: float, theirs: float, share: float) -> float:
    return (1.0 - share) * ours + share * theirs


# The exchange, by value.


async def test_after_each_push_both_hold_what_alpha_and_beta_say(tmp_path: Path) -> None:
    alpha, beta = 0.25, 0.5
    async with running(constant(parent={"alpha": alpha}, child={"beta": beta}), tmp_path) as parent:
        async with Serving(child_of(parent)) as serving:
            await serving.exchanged(5)
        blends = serving.backend.blends
    sent, answered, after = blends[0]
    assert (sent, answered, after) == (
        1.0,
        1.0,
        1.0,
    )  # the parent had no weights and took the child's
    for sent, new, mine in blends[1:]:
        assert sent == (
            after if (sent, new, mine) == blends[-1] else after + 1.0
        )  # nothing is learned before the farewell's push
        assert new == pytest.approx(blended(answered, sent, alpha))
        assert mine == pytest.approx(blended(sent, new, beta))
        answered, after = new, mine
    np.testing.assert_allclose(
        checkpoints.load(max((tmp_path / "checkpoints").glob("version*"))).vector, answered
    )


async def test_two_children_blend_into_one_parent_in_the_order_of_its_history(
    tmp_path: Path,
) -> None:
    alpha, beta = 0.5, 0.25
    async with running(constant(parent={"alpha": alpha}, child={"beta": beta}), tmp_path) as parent:
        async with Serving(child_of(parent, "a")) as a, Serving(child_of(parent, "b")) as b:
            await a.exchanged(5)
            await b.exchanged(5)
        blends = {"a": iter(a.backend.blends), "b": iter(b.backend.blends)}
    theta: float | None = None
    lines = history(tmp_path, "exchange")
    assert {line["child"] for line in lines} == {"a", "b"}
    for version, line in enumerate(lines, start=1):
        assert line["version"] == version
        sent, answered, after = next(blends[line["child"]])
        theta = sent if theta is None else blended(theta, sent, alpha)
        assert answered == pytest.approx(theta)
        assert after == pytest.approx(blended(sent, answered, beta))
    assert all(next(rest, None) is None for rest in blends.values())


async def test_a_child_starts_from_the_parents_weights(tmp_path: Path) -> None:
    async with running(
        constant(network={"options": {"gain": 0.0, "first": 3.0}}), tmp_path
    ) as parent:
        async with Serving(child_of(parent, "first")) as first:
            await first.exchanged(2)
        parent.server.trial.vector[:] = 7.0  # type: ignore[index]
        async with Serving(child_of(parent, "second")) as second:
            await second.exchanged(1)
        assert second.backend.blends[0] == (7.0, 7.0, 7.0)


async def test_all_work_is_counted_once(tmp_path: Path) -> None:
    async with running(constant(), tmp_path) as parent:
        async with Serving(child_of(parent)) as serving:
            await serving.exchanged(5)
        assert parent.server.trial.steps == 10 * serving.backend.exchanges
        assert parent.server.trial.episodes == serving.backend.exchanges
        assert list(parent.server.trial.returns) == [
            float(n) for n in range(serving.backend.exchanges)
        ]
    assert [line["reason"] for line in history(tmp_path, "leave")] == ["stopped"]


async def test_a_large_network_fits_through(tmp_path: Path) -> None:
    size = 1 << 20  # 4 MiB, four times what a handshake may hold
    async with running(constant(network={"options": {"size": size}}), tmp_path) as parent:
        async with Serving(child_of(parent)) as serving:
            await serving.exchanged(3)
        assert parent.server.trial.vector is not None
        assert parent.server.trial.vector.shape == (size,)
        assert parent.server.trial.version >= 2


# The end of a run.


async def test_the_child_ends_when_the_run_is_over(tmp_path: Path) -> None:
    async with running(constant(stop={"updates": 3}), tmp_path) as parent:
        child = child_of(parent)
        async with asyncio.timeout(10):
            await child.serve()
        assert isinstance(child.backend.progress, list)  # type: ignore[union-attr]
        assert child.backend.progress == [0.0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0]  # type: ignore[union-attr]
        assert child.backend.ended  # type: ignore[union-attr]
    assert history(tmp_path, "leave")[0]["reason"] == "3 updates done"


async def test_a_child_that_comes_too_late_builds_nothing(tmp_path: Path) -> None:
    async with running(constant(stop={"updates": 3}), tmp_path) as parent:
        await child_of(parent).serve()
        late = child_of(parent, "late")
        await late.serve()
        assert late.backend is None
        await eventually(lambda: not parent.server.connected)


async def test_a_run_that_ends_between_hello_and_join_starts_nothing() -> None:
    async with Scripted(
        join=Weights(version=5, stop="10 seconds are over", vector=np.ones(4, DTYPE))
    ) as parent:
        child = Child(parent.url, name="pi")
        await child.serve()
        assert not child.backend.begun  # type: ignore[union-attr]
        assert child.backend.ended  # type: ignore[union-attr]


async def test_the_close_code_1000_ends_a_child_whose_next_exchange_is_far_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genkidama.parent.server.LEAVE_SECONDS", 0.1)
    settings = constant(stop={"seconds": 0.2}, network={"options": {"seconds": 3600.0}})
    parent = Parent(settings, out=tmp_path, listen="127.0.0.1:0")
    await parent.startup()
    task = asyncio.create_task(child_of(parent).serve())
    await parent.serve()
    await parent.shutdown()
    async with asyncio.timeout(10):
        await task


# A parent that goes away.


async def test_cut_off_it_trains_on_and_then_brings_its_weights_back(tmp_path: Path) -> None:
    settings = constant()
    async with running(settings, tmp_path) as parent:
        address = url(parent.address)
        serving = Serving(Child(address, name="pi"))
        await serving.__aenter__()
        await serving.exchanged(3)
    version = history(tmp_path, "checkpoint")[-1]["version"]
    before, blends = serving.backend.exchanges, len(serving.backend.blends)
    await serving.exchanged(5)
    assert serving.backend.exchanges >= before + 5
    assert len(serving.backend.blends) == blends  # nobody answered, and it went on all the same
    async with running(settings, tmp_path, address.removeprefix("ws://")) as parent:
        assert parent.server.trial.version == version
        await eventually(lambda: parent.server.trial.version >= version + 3)
        sent = serving.backend.blends[blends][0]
        assert (
            sent > serving.backend.blends[blends - 1][2] + 5.0
        )  # it pushed its own weights, which had moved on
        await serving.__aexit__(None, None, None)
        # A push that the first parent took but could not answer is counted by the second one, too.
        assert parent.server.trial.steps - 10 * serving.backend.exchanges in (0, 10)
    assert [line["version"] for line in history(tmp_path, "resume")] == [version]


async def test_a_parent_that_has_lost_everything_takes_the_childs_weights(tmp_path: Path) -> None:
    async with running(constant(), tmp_path / "before") as parent:
        address = url(parent.address)
        serving = Serving(Child(address, name="pi"))
        await serving.__aenter__()
        await serving.exchanged(5)
    kept = serving.backend.blends[-1][2]
    count = len(serving.backend.blends)
    async with running(constant(), tmp_path / "after", address.removeprefix("ws://")):
        await eventually(lambda: len(serving.backend.blends) > count)
        sent, answered, after = serving.backend.blends[count]
        assert sent == answered == after
        assert sent > kept
        await serving.__aexit__(None, None, None)


async def test_a_parent_that_now_runs_another_experiment_is_left(tmp_path: Path) -> None:
    async with running(constant(), tmp_path / "before") as parent:
        address = url(parent.address)
        serving = Serving(Child(address, name="pi"))
        await serving.__aenter__()
        await serving.exchanged(2)
    async with running(
        constant(algorithm={"gamma": 0.5}), tmp_path / "after", address.removeprefix("ws://")
    ):
        with pytest.raises(GenkidamaError, match=r"another experiment \(\[algorithm\] differs\)"):
            await serving.task
    assert serving.backend.ended


async def test_a_parent_that_is_lost_while_the_network_is_built_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    building, built = asyncio.Event(), asyncio.Event()
    backend = make_backend(constant(), 1, "pi")
    at_once = backend.startup

    async def startup() -> Signature:
        building.set()
        await built.wait()
        return await at_once()

    monkeypatch.setattr(backend, "startup", startup)
    monkeypatch.setattr(client, "make_backend", lambda *_: backend)
    async with running(constant(), tmp_path) as parent:
        address = url(parent.address)
        serving = Serving(Child(address, name="pi"))
        await serving.__aenter__()
        await building.wait()
    built.set()
    async with running(constant(), tmp_path, address.removeprefix("ws://")) as parent:
        await eventually(lambda: parent.server.trial.version >= 2)
        await serving.__aexit__(None, None, None)


async def test_a_push_whose_reply_got_lost_is_sent_again_under_its_number() -> None:
    async with Scripted(push=[None, None]) as parent, Serving(Child(parent.url, name="pi")):
        pushes = parent.of(Push)
        await eventually(lambda: len(pushes()) >= 4)
    first, second, third, fourth = pushes()[:4]
    assert (
        (first.sequence, first.steps, first.returns)
        == (second.sequence, second.steps, second.returns)
        == (1, 10, [0.0])
    )
    assert (third.sequence, third.steps) == (1, 10)
    assert fourth.sequence == 2
    assert fourth.steps >= 10  # everything since, the time without an answer included
    assert len(parent.connections) == 3


# The measures of a backend.


class MeasuringBackend(ConstantBackend):
    """Reports `number`, how often it was asked, `pps`, `lag`, and what `network.options.strange`
    says."""

    asked = 0

    def take_work(self) -> Work:
        work = super().take_work()
        self.asked += 1
        strange = self.experiment.network.options.get("strange", {})
        work.measures = {
            "number": self.asked,
            "pps": np.float32(250.0),
            "lag": float("nan"),
            **strange,
        }
        return work


def measuring(**sections: dict[str, Any]) -> Experiment:
    return constant(**sections, child={"backend": f"{__name__}:MeasuringBackend"})


async def test_measures_end_up_in_the_history_and_in_the_progress_line(tmp_path: Path) -> None:
    settings = measuring()
    async with running(settings, tmp_path) as parent:
        async with Serving(child_of(parent, "a")) as a, Serving(child_of(parent, "b")) as b:
            await a.exchanged(5)
            await b.exchanged(5)
        assert not parent.server.refusals
    lines = history(tmp_path, "measures")
    for child in "ab":
        exchanges = [line for line in history(tmp_path, "exchange") if line["child"] == child]
        assert [line for line in lines if line["child"] == child] == [
            {
                "time": exchange["time"],
                "event": "measures",
                "backend": settings.child.backend,
                "child": child,
                "number": number,
                "pps": 250.0,
            }
            for number, exchange in enumerate(exchanges, start=1)
        ]
        assert len(exchanges) >= 5
    progress = Progress(settings, io.StringIO())
    shown = set()
    for line in history(tmp_path):
        progress(line)
        if line["event"] == "measures":
            shown.add(progress.line().partition(" · PPS ")[2].partition(" · ")[0])
    assert "500" in shown and "PPS" not in progress.line()  # both have left


async def test_a_run_goes_on_in_a_history_that_holds_measures(tmp_path: Path) -> None:
    settings = measuring()
    for _ in range(2):
        async with running(settings, tmp_path) as parent, Serving(child_of(parent)) as serving:
            await serving.exchanged(2)
    assert len(history(tmp_path, "resume")) == 1
    assert len(history(tmp_path, "measures")) == len(history(tmp_path, "exchange")) >= 4


async def test_a_push_that_is_sent_again_carries_its_measures_and_the_next_the_newest() -> None:
    async with (
        Scripted(measuring(), push=[None, None]) as parent,
        Serving(Child(parent.url, name="pi")),
    ):
        pushes = parent.of(Push)
        await eventually(lambda: len(pushes()) >= 4)
    first, second, third, fourth = pushes()[:4]
    assert first.measures == second.measures == third.measures == {"number": 1.0, "pps": 250.0}
    assert fourth.measures["number"] == 1 + fourth.steps / 10 >= 4


async def test_measures_wait_for_the_next_push_if_there_are_no_newer_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def take_work(backend: MeasuringBackend) -> Work:
        backend.asked += 1
        return Work(steps=1, measures={"number": 2.0} if backend.asked == 2 else {})

    monkeypatch.setattr(MeasuringBackend, "take_work", take_work)
    async with (
        Scripted(measuring(), push=[None, None]) as parent,
        Serving(Child(parent.url, name="pi")),
    ):
        pushes = parent.of(Push)
        await eventually(lambda: len(pushes()) >= 5)
    assert [push.measures for push in pushes()[:5]] == [{}, {}, {}, {"number": 2.0}, {}]


async def test_measures_that_are_not_permitted_are_left_out_and_spoken_of_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strange = {"time": 1.0, "PPS": 1.0, "large": 1e31, "infinite": float("inf")}
    async with running(measuring(network={"options": {"strange": strange}}), tmp_path) as parent:
        async with Serving(child_of(parent)) as serving:
            await serving.exchanged(4)
        assert not parent.server.refusals
    assert all(
        line.keys() == {"time", "event", "child", "number", "pps"}
        for line in history(tmp_path, measuring().child.backend)
    )
    said = [
        json.loads(line) for line in capsys.readouterr().err.splitlines() if "not permit" in line
    ]
    assert [line["measures"] for line in said] == [["time", "PPS", "large"]]


def test_a_backend_is_made_by_its_name() -> None:
    assert type(make_backend(small(), 1, "pi")) is CoreOrchestrator
    assert type(make_backend(small(child={"backend": "ga3c"}), 1, "pi")) is GA3C
    assert type(make_backend(measuring(), 1, "pi")) is MeasuringBackend


# A parent that talks nonsense.


class Scripted(FakeParent):
    """A parent that follows the rules, but gives these answers to the first messages of a kind."""

    def __init__(
        self, experiment: Experiment | None = None, **answers: Answer | list[Answer]
    ) -> None:
        super().__init__(self._next)
        self.experiment = experiment or constant()
        self._answers = {
            kind: list(given) if isinstance(given, list) else [given]
            for kind, given in answers.items()
        }

    def _next(self, request: Request) -> Answer:
        given = self._answers.get(type(request).__name__.lower())
        if given:
            return given.pop(0)
        match request:
            case Hello():
                return Welcome(protocol=PROTOCOL, experiment=self.experiment.to_dict())
            case Leave():
                return Goodbye()
            case Push():
                return Weights(version=request.version + 1, vector=request.vector)
        return Weights(version=0, vector=np.zeros(4, DTYPE))

    def of(self, kind: type[Any]) -> Callable[[], list[Any]]:
        return lambda: [request for request in self.requests if isinstance(request, kind)]


NONSENSE: dict[str, Answer] = {
    "garbage": b"\x07\x00\x00\x00garbage",
    "nothing": b"",
    "a text": "hello",
    "the wrong reply": Goodbye(),
    "too many numbers": Weights(version=1, vector=np.zeros(5, DTYPE)),
    "too few numbers": Weights(version=1, vector=np.zeros(3, DTYPE)),
    "NaN": Weights(version=1, vector=np.full(4, np.nan, DTYPE)),
    "infinity": Weights(version=1, vector=np.full(4, np.inf, DTYPE)),
    "silence": None,
    "more than was agreed on": bytes(1 << 20),
}


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE.keys())
@pytest.mark.parametrize("to", ["hello", "join", "push"])
async def test_it_trains_on_whatever_the_parent_answers(to: str, answer: Answer) -> None:
    async with (
        Scripted(**{to: [answer]}) as parent,
        Serving(Child(parent.url, name="pi")) as serving,
    ):
        await eventually(lambda: len(parent.connections) == 2 and len(parent.of(Push)()) >= 3)
        assert not serving.task.done()
        assert all(np.isfinite(blend).all() for blend in serving.backend.blends)


async def test_a_parent_that_never_answers_is_left_alone_and_tried_again() -> None:
    async with (
        Scripted(push=[None] * 3) as parent,
        Serving(Child(parent.url, name="pi")) as serving,
    ):
        await eventually(lambda: len(parent.connections) >= 4)
        assert serving.backend.exchanges >= 3


# Refusals.


async def test_another_protocol_version_is_refused_with_the_parents_words() -> None:
    reason = (
        f"child 'pi' speaks protocol {PROTOCOL}, this parent protocol 9; "
        "install the same version on both"
    )
    async with Scripted(hello=Refusal(code="version", reason=reason)) as parent:
        with pytest.raises(
            GenkidamaError,
            match=r"^the parent refuses this child: child 'pi' speaks protocol 1, this parent ",
        ):
            await Child(parent.url, name="pi").serve()


async def test_a_parent_that_welcomes_with_another_protocol_version_is_left() -> None:
    async with Scripted(hello=Welcome(protocol=9, experiment={})) as parent:
        with pytest.raises(EnvironmentFailure, match="speaks protocol 9, this child 1"):
            await Child(parent.url, name="pi").serve()


async def test_an_experiment_of_a_newer_version_is_an_error_of_one_line() -> None:
    async with Scripted(
        hello=Welcome(protocol=PROTOCOL, experiment={"algorithm": {"newer": 1}})
    ) as parent:
        with pytest.raises(
            ConfigurationError,
            match=r"the experiment of ws://.*: algorithm.newer = 1: no such setting",
        ):
            await Child(parent.url, name="pi").serve()


async def test_another_network_is_refused(tmp_path: Path) -> None:
    async with running(constant(), tmp_path) as parent:
        async with Serving(child_of(parent)) as serving:
            await serving.exchanged(1)
        parent.server.experiment = constant(network={"options": {"size": 5}})
        parent.server.trial.experiment = parent.server.experiment.to_dict()
        with pytest.raises(
            GenkidamaError,
            match=r"another network: parameter 0 is 'constant' with shape \[5\], expected .*\[4\]",
        ):
            await child_of(parent, "other").serve()


async def test_a_second_child_with_the_same_name_is_refused(tmp_path: Path) -> None:
    async with running(constant(), tmp_path) as parent, Serving(child_of(parent)) as first:
        await first.exchanged(1)
        with pytest.raises(GenkidamaError, match="the name 'pi' is in use by another child"):
            await child_of(parent).serve()
        await first.exchanged(2)
        assert parent.server.connected == ["pi"]


async def test_children_without_a_name_are_called_after_their_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "büro_3.local")
    async with (
        running(constant(), tmp_path) as parent,
        Serving(Child(url(parent.address))) as first,
        Serving(Child(url(parent.address))) as second,
    ):
        await first.exchanged(1)
        await second.exchanged(1)
        assert sorted(parent.server.connected) == ["b-ro_3", "b-ro_3-2"]


@pytest.mark.parametrize(
    "address",
    [
        "ws://127.0.0.1:99999",
        "ws://[::1",
        "ws://a..b:1",
        "ws://127.0.0.1:port",
        "ws://:80",
        "ws://pi@pi:1",
    ],
)
async def test_an_address_that_is_none_is_the_users_mistake(address: str) -> None:
    with pytest.raises(ConfigurationError, match="expected ws://HOST:PORT"):
        await Child(address, name="pi").serve()


# Weights that are no numbers any more.


async def test_weights_that_are_not_finite_are_replaced_by_the_parents(tmp_path: Path) -> None:
    async with running(
        constant(network={"options": {"gain": 0.0, "first": 2.0}}), tmp_path
    ) as parent:
        async with Serving(child_of(parent)) as serving:
            await serving.exchanged(2)
            serving.backend.weights[1] = np.nan
            await eventually(lambda: serving.backend.resets)
            await serving.exchanged(2)
        assert serving.backend.resets == [2.0]
        assert parent.server.refusals == {"finite": 1}
        np.testing.assert_array_equal(parent.server.trial.vector, np.full(4, 2.0, DTYPE))
        assert parent.server.trial.steps == 10 * serving.backend.exchanges


async def test_weights_that_are_not_finite_from_the_start_end_the_child(tmp_path: Path) -> None:
    async with running(constant(network={"options": {"first": float("inf")}}), tmp_path) as parent:
        with pytest.raises(
            EnvironmentFailure,
            match="pushes NaN or infinity, and the parent has no weights to fall back to",
        ):
            await child_of(parent).serve()


async def test_returns_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    async with running(constant(), tmp_path) as parent, Serving(child_of(parent)) as serving:
        await serving.exchanged(1)
        serving.backend.work.returns += [float("nan"), float("inf"), 1e31, -7.0]
        await eventually(lambda: -7.0 in parent.server.trial.returns)
        await serving.exchanged(2)
        assert np.isfinite(list(parent.server.trial.returns)).all()
        assert not parent.server.refusals
        assert not serving.backend.resets


# The end of a child, at any moment.


@pytest.fixture
def mute() -> Iterator[str]:
    """An address where connections are let in, and never a word is said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield url(listener.getsockname())


async def seconds_to_stop(child: Child, moment: Callable[[], Any]) -> float:
    task = asyncio.create_task(child.serve())
    await eventually(moment)
    began = time.monotonic()
    child.stop()
    async with asyncio.timeout(10):
        await task
    return time.monotonic() - began


@pytest.mark.alone
async def test_it_stops_while_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    child, said = Child("ws://127.0.0.1:9", name="pi"), []

    def complained() -> bool:
        said.append(capsys.readouterr().err)
        return "not reachable, still trying" in "".join(said)

    assert await seconds_to_stop(child, complained) < 1.0


@pytest.mark.alone
async def test_it_stops_while_the_other_end_says_nothing(mute: str) -> None:
    child = Child(mute, name="pi")
    assert await seconds_to_stop(child, lambda: True) < 1.0


@pytest.mark.alone
@pytest.mark.parametrize("silent", ["hello", "join", "push", "leave"])
async def test_it_stops_while_it_waits_for_a_reply(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplink, "REPLY_SECONDS", 30.0)
    async with Scripted(**{silent: [None] * 99}) as parent:
        kind = {"hello": Hello, "join": Join}.get(silent, Push)
        child = Child(parent.url, name="pi")
        assert await seconds_to_stop(child, parent.of(kind)) < 4.0
        assert child.backend is None or child.backend.ended  # type: ignore[attr-defined]


async def test_stopped_before_it_began_it_does_nothing() -> None:
    child = Child("ws://127.0.0.1:9", name="pi")
    child.stop()
    await child.serve()


@pytest.mark.parametrize("threaded", [False, True])
def test_run_gives_the_signals_back(threaded: bool) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    child = Child("ws://127.0.0.1:9", name="pi")
    child.stop()
    if threaded:  # where signals are none of its business
        thread = threading.Thread(target=child.run)
        thread.start()
        thread.join()
    else:
        child.run()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


async def test_a_backend_that_cannot_go_on_ends_the_child(tmp_path: Path) -> None:
    async with running(constant(), tmp_path) as parent:
        serving = Serving(child_of(parent))
        await serving.__aenter__()
        await serving.exchanged(1)
        serving.backend.failure = EnvironmentFailure("no cores left")
        with pytest.raises(EnvironmentFailure, match="no cores left"):
            await serving.task
        assert serving.backend.ended
        await eventually(lambda: not parent.server.connected)


async def test_a_backend_that_cannot_be_built_ends_the_child(tmp_path: Path) -> None:
    async with running(
        constant(child={"backend": "tests.helpers:NoSuchBackend"}), tmp_path
    ) as parent:
        with pytest.raises(
            ConfigurationError,
            match=r"child.backend = 'tests.helpers:NoSuchBackend': .* has no 'NoSuchBackend'",
        ):
            await child_of(parent).serve()
        await eventually(lambda: not parent.server.connected)


# The child's own state.


async def test_its_own_state_survives_a_restart(tmp_path: Path) -> None:
    settings = constant(network={"options": {"gain": 0.0, "first": 5.0}})
    async with (
        running(settings, tmp_path / "first") as parent,
        Serving(child_of(parent, state=tmp_path / "state")) as serving,
    ):
        await serving.exchanged(1)
        serving.backend.weights[:] = 9.0
    assert (tmp_path / "state" / "pi.safetensors").exists()
    # The second parent has no weights, and so gets the child's.
    async with (
        running(settings, tmp_path / "second") as parent,
        Serving(child_of(parent, state=tmp_path / "state")) as serving,
    ):
        await serving.exchanged(1)
    assert serving.backend.blends[0][0] > 5.0


@pytest.mark.parametrize("content", [b"", b"no state", b"\xff" * 100])
async def test_a_state_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pi.safetensors").write_bytes(content)
    async with running(
        constant(network={"options": {"gain": 0.0, "first": 5.0}}), tmp_path / "run"
    ) as parent:
        async with Serving(child_of(parent, state=tmp_path)) as serving:
            await serving.exchanged(1)
        assert serving.backend.blends[0][0] == 5.0


async def test_a_state_of_another_network_is_left_alone(tmp_path: Path) -> None:
    for size in (4, 5):
        async with running(
            constant(network={"options": {"size": size}}), tmp_path / f"run-{size}"
        ) as parent:
            async with Serving(child_of(parent, state=tmp_path)) as serving:
                await serving.exchanged(1)
            assert serving.backend.blends[0][0] == 1.0


async def test_a_state_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with running(constant(), tmp_path / "run") as parent:
        async with Serving(child_of(parent, state=tmp_path / "file" / "state")) as serving:
            await serving.exchanged(2)
        assert parent.server.trial.steps == 10 * serving.backend.exchanges


# How many cores.


@pytest.mark.parametrize(
    ("own", "experiments", "expected"),
    [(None, 3, 3), ("experiment", 3, 3), (2, 3, 2), (2, "auto", 2)],
)
async def test_how_many_cores_is_the_childs_choice_first(
    tmp_path: Path, own: Any, experiments: Any, expected: int
) -> None:
    async with running(constant(child={"cores": experiments}), tmp_path) as parent:
        async with Serving(child_of(parent, cores=own)) as serving:
            await serving.exchanged(1)
        assert serving.backend.cores == expected


async def test_auto_takes_every_core_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "available_cores", lambda: 6)
    async with running(constant(), tmp_path) as parent:
        child = Child.from_role(
            Role.from_dict({"parent": url(parent.address), "cores": "auto", "name": "pi"})
        )
        async with Serving(child) as serving:
            await serving.exchanged(1)
        assert serving.backend.cores == 6
