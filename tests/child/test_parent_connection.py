"""What a child and its parent say to each other: a real Parent, or one that talks nonsense.

The backend learns nothing, so weights are compared by value.
"""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genkidama.child import transport
from genkidama.child.backend import Work
from genkidama.child.child import Child
from genkidama.child.parent_connection import ParentConnection
from genkidama.child.transport import Transport
from genkidama.cli.progress import Progress
from genkidama.config.experiment import Experiment
from genkidama.config.role import Role
from genkidama.errors import GenkidamaError, ProtocolError
from genkidama.parent import Parent
from genkidama.protocol.diagnostics import HEALTH
from genkidama.protocol.messages import (
    PROTOCOL,
    Goodbye,
    Leave,
    Pull,
    Push,
    Refusal,
    Reply,
    Request,
    Weights,
    Welcome,
    decode_request,
    encode,
)
from genkidama.protocol.session import Keep, Session
from genkidama.protocol.vector import DTYPE, Signature
from genkidama.runs import checkpoint as checkpoints
from tests.child.talking import OTHER, TOKEN, Said, Scripted, child_of
from tests.helpers import (
    PATIENCE,
    Answer,
    ConstantBackend,
    FakeParent,
    Serving,
    constant,
    eventually,
    history,
    running,
    url,
)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "BACKOFF_SECONDS", (0.01, 0.05))
    monkeypatch.setattr(transport, "REPLY_SECONDS", 0.3)


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
        # Nothing is learned before the farewell's push.
        assert sent == (after if (sent, new, mine) == blends[-1] else after + 1.0)
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


# A parent that does not let it in is tried again.


@pytest.mark.usefixtures("_patient")
async def test_a_child_whose_token_is_not_known_yet_is_let_in_when_it_is(
    tmp_path: Path, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens.write_text(f"another {OTHER}\n")
    said = Said(capsys, "not admitted, still trying")
    async with running(constant(parent={"tokens_file": str(tokens)}), tmp_path / "run") as parent:
        child = Child(url(parent.address), name="pi", token=TOKEN)
        async with Serving(child) as serving:
            await eventually(lambda: parent.server.refusals["token"] >= 3)
            reason = (
                "wrong token: the parent does not know it, or it has ended; make another on the "
                "parent's machine: genkidama token, or a line in parent.tokens_file"
            )
            assert said.reasons() == [reason]
            assert child.status == f"waiting for {child.parent}: {reason}"
            tokens.write_text(f"another {OTHER}\npi {TOKEN}\n")
            await serving.exchanged(2)
            assert parent.server.connected == ["pi"]
    assert said.reasons() == [reason]


@pytest.mark.usefixtures("_patient")
async def test_a_token_that_has_ended_is_read_again(
    tmp_path: Path, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    said = Said(capsys, "everybody on this machine may read the token")
    async with running(constant(parent={"tokens_file": str(tokens)}), tmp_path / "run") as parent:
        own: dict[str, Any] = {"name": "pi", "token_file": str(file), "allow": ["tests"]}
        role = Role(parent=url(parent.address), **own)
        async with Serving(Child.from_role(role)) as serving:
            await serving.exchanged(1)
            file.write_text("")  # it is being replaced
            tokens.write_text(f"pi {OTHER}\n")
            parent.connections.children["pi"].transport.abort()
            await eventually(lambda: parent.server.refusals["token"] >= 2)
            file.write_text(OTHER)
            await eventually(lambda: parent.server.joined == {"pi"})
            await serving.exchanged(2)
    assert len(said.reasons()) == 1


# A token that anybody on the way can read.


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize(
    ("host", "token", "warned"),
    [("0.0.0.0", TOKEN, True), ("0.0.0.0", "", False), ("127.0.0.1", TOKEN, False)],
)
async def test_a_token_that_leaves_the_machine_unencrypted_is_spoken_of_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str, token: str, warned: bool
) -> None:
    said = Said(capsys, "the token travels readable; use wss://")
    async with running(constant(), tmp_path / "run") as parent:
        # A connection to 0.0.0.0 is one to this machine.
        there = Transport(f"ws://{host}:{parent.address[1]}", token=token)
        talk = ParentConnection(there, Session("pi", "word", parent=there.parent), lambda: None)
        for _ in range(2):
            async with asyncio.timeout(PATIENCE):
                await talk.begin()
            await talk.close()
            await eventually(lambda: not parent.server.connected)
    assert len(said.reasons()) == warned


# A parent that goes away.


async def test_a_parent_is_heard_of_between_two_exchanges_by_who_minds_its_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[ConstantBackend] = []
    monkeypatch.setattr(ConstantBackend, "alive", lambda self: heard.append(self), raising=False)
    clock = {"period": 0.02, "safe_action": [0.0], "offline_seconds": 0.1}
    settings = constant(environment=clock, network={"options": {"seconds": 3600.0}})
    async with (
        running(settings, tmp_path) as parent,
        Serving(Child(url(parent.address), name="pi")) as serving,
    ):
        await eventually(lambda: len(heard) >= 3)
        assert serving.backend.exchanges == 0 and set(heard) == {serving.backend}


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
        # It pushed its own weights, which had moved on.
        assert sent > serving.backend.blends[blends - 1][2] + 5.0
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


async def test_the_close_code_1000_ends_a_child_whose_next_exchange_is_far_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genkidama.parent.parent.LEAVE_SECONDS", 0.1)
    settings = constant(stop={"seconds": 0.2}, network={"options": {"seconds": 3600.0}})
    parent = Parent(settings, out=tmp_path, listen="127.0.0.1:0")
    await parent.startup()
    task = asyncio.create_task(child_of(parent).serve())
    await parent.serve()
    await parent.shutdown()
    async with asyncio.timeout(10):
        await task


async def test_a_child_whose_hello_is_answered_by_the_runs_end_ends_too() -> None:
    closing = []

    def answer(_: Request) -> None:
        closed = parent.connections[-1].close(1000, "the run is over")
        closing.append(asyncio.ensure_future(closed))

    async with FakeParent(answer) as parent:
        async with asyncio.timeout(10):
            await Child(parent.url, name="pi").serve()
        await closing[0]
    assert len(parent.connections) == 1


async def test_a_child_whose_name_was_taken_meanwhile_trains_on_under_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("genkidama.child.parent_connection.machine_name", lambda: "pi")
    welcome = Welcome(protocol=PROTOCOL, experiment=constant().to_dict())
    taken = Refusal(code="name", reason="the name is in use")
    async with (
        Scripted(hello=[welcome, taken, welcome, taken], join=None) as parent,
        Serving(Child(parent.url)) as serving,
    ):
        await eventually(lambda: parent.of(Push)() and serving.child.name == "pi-2")
        parent.connections[-1].transport.abort()
        await eventually(lambda: serving.child.name == "pi-3")
        await serving.exchanged(2)
        assert serving.backend.exchanges > 2


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
        told = [line for line in lines if line["child"] == child]
        own = [{key: line[key] for key in line if key not in HEALTH} for line in told]
        assert own == [
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


async def test_measures_that_are_not_permitted_are_left_out_and_spoken_of_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strange = {"time": 1.0, "PPS": 1.0, "large": 1e31, "infinite": float("inf")}
    async with running(measuring(network={"options": {"strange": strange}}), tmp_path) as parent:
        async with Serving(child_of(parent)) as serving:
            await serving.exchanged(4)
        assert not parent.server.refusals
    told = history(tmp_path, "measures")
    known = {"time", "event", "backend", "child", "number", "pps", *HEALTH}
    assert told and all("pps" in line and line.keys() <= known for line in told)
    said = [
        json.loads(line) for line in capsys.readouterr().err.splitlines() if "not permit" in line
    ]
    assert [line["measures"] for line in said] == [["time", "PPS", "large"]]


# A parent that talks nonsense.


NONSENSE: dict[str, Answer] = {
    "garbage": b"\x07\x00\x00\x00garbage",
    "a text": "hello",
    "the wrong reply": Goodbye(),
    "too many numbers": Weights(version=1, vector=np.zeros(5, DTYPE)),
    "NaN": Weights(version=1, vector=np.full(4, np.nan, DTYPE)),
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


async def test_a_child_blends_what_a_difference_says(tmp_path: Path) -> None:
    settings = constant(parent={"alpha": 0.5, "encoding": "int8"}, child={"beta": 0.5})
    async with running(settings, tmp_path) as parent:
        async with Serving(child_of(parent)) as serving:
            await serving.exchanged(5)
        line = [blend for blend in serving.backend.blends if blend[0] != blend[1]]
        for sent, new, mine in line:
            assert mine == pytest.approx(blended(sent, new, 0.5))
        assert parent.server.refusals == {}
        theta = parent.server.trial.vector
        assert theta is not None and theta[0] == pytest.approx(serving.backend.blends[-1][1])


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


SIGNATURE = Signature.of([("layer.weight", (3, 2))])
LEAVE, PULL = Leave(reason="tea"), Pull(wait=True)


class Line:
    """A connection: what was sent on it, and what the parent answers."""

    def __init__(self) -> None:
        self.sent: list[Request] = []
        self.replies: asyncio.Queue[bytes] = asyncio.Queue()
        self.ping_timeout = 60.0

    async def send(self, frame: bytes) -> None:
        self.sent.append(decode_request(frame))

    async def recv(self, decode: bool) -> bytes:
        return await self.replies.get()

    def answer(self, *replies: Reply | bytes) -> None:
        for reply in replies:
            self.replies.put_nowait(reply if isinstance(reply, bytes) else encode(reply))


class Told:
    """A backend that notes what it is told."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    def pulling(self) -> None:
        self.notes.append("pulling")

    def pulled(self, weights: np.ndarray | None, steps: int) -> None:
        self.notes.append((None if weights is None else weights.tolist(), steps))

    def set_progress(self, progress: float) -> None:
        self.notes.append(progress)


def weights(value: float, version: int = 1, **more: Any) -> Weights:
    return Weights(version=version, vector=np.full(SIGNATURE.size, value, DTYPE), **more)


class Talk:
    """A connection whose child is this, and the frames on it."""

    def __init__(self) -> None:
        session = Session("pi", "word", parent="ws://parent")
        session.join(SIGNATURE)
        self.over = 0
        self.line: Any = Line()
        self.told: Any = Told()
        self.connection = ParentConnection(Transport("ws://parent"), session, self.ended)

    def ended(self) -> None:
        self.over += 1

    async def pull(self) -> None:
        await self.line.send(encode(PULL))
        self.connection._await_news(self.line, self.told)

    async def ask(self, asks: bool = False) -> Reply:
        return await self.connection._exchange(self.line, LEAVE, self.told if asks else None)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_news_are_told_when_they_come_and_nobody_waits() -> None:
    talk = Talk()
    await talk.pull()
    assert talk.line.sent == [Pull(wait=True)]
    assert talk.told.notes == ["pulling"]
    talk.line.answer(weights(2.0, progress=0.25, steps=64))
    await turns()
    assert talk.told.notes == ["pulling", 0.25, ([2.0] * 6, 64)]
    talk.line.answer(weights(3.0))
    assert (await talk.ask()).vector.tolist() == [3.0] * 6  # type: ignore[union-attr]


async def test_the_reply_to_a_pull_that_stands_comes_before_that_to_what_is_asked_next() -> None:
    talk = Talk()
    await talk.pull()
    talk.line.answer(Weights(version=1, progress=0.5), weights(4.0, version=2))
    reply = await talk.ask()
    assert isinstance(reply, Weights) and reply.version == 2
    assert talk.told.notes == ["pulling", 0.5, (None, 0)]


async def test_a_pull_that_stands_is_answered_because_of_the_next() -> None:
    talk = Talk()
    await talk.pull()
    again = asyncio.create_task(talk.connection._ask_or_lose(talk.line, None, talk.told))
    await turns()
    assert talk.line.sent == [PULL, PULL]  # the parent answers none without a reason
    talk.line.answer(Weights(version=1, progress=0.5))
    assert await again == Keep()
    assert talk.told.notes == ["pulling", 0.5, (None, 0), "pulling"]


async def test_news_are_asked_for_with_another_request() -> None:
    talk = Talk()
    talk.line.answer(weights(4.0, version=2))
    reply = await talk.ask(asks=True)
    assert isinstance(reply, Weights) and reply.version == 2
    assert talk.line.sent == [LEAVE, Pull(wait=True)]
    assert talk.told.notes == ["pulling"]
    talk.line.answer(weights(5.0, stop="over"))
    await turns()
    assert talk.told.notes[-1] == ([5.0] * 6, 0)
    assert talk.over == 1


async def test_what_goes_wrong_with_a_pull_is_raised_by_the_next_request() -> None:
    talk = Talk()
    await talk.pull()
    talk.line.answer(b"nonsense")
    await turns()
    with pytest.raises(ProtocolError):
        await talk.ask()


async def test_a_parent_that_does_not_answer_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "REPLY_SECONDS", 0.05)
    talk = Talk()
    await talk.pull()
    with pytest.raises(TimeoutError):
        await talk.ask()


async def test_a_pong_behind_a_large_push_is_waited_for() -> None:
    talk, rows = Talk(), np.zeros(1 << 20, DTYPE)
    talk.line.answer(weights(1.0), weights(1.0))
    for request in (Push(version=0, sequence=1, kind="experience", vector=rows), LEAVE):
        await talk.connection._exchange(talk.line, request)
        assert talk.line.ping_timeout >= 60.0 + rows.nbytes / 10_000


async def test_a_pull_that_is_forgotten_hears_nothing() -> None:
    talk = Talk()
    await talk.pull()
    await turns()
    talk.connection._forget()
    await turns()
    talk.line.answer(weights(1.0))
    await turns()
    assert talk.told.notes == ["pulling"]


async def test_the_bytes_of_a_large_vector_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1 << 16
    async with running(constant(), tmp_path) as parent:
        options = {"name": "pi", "role": "", "token": "", "ca_file": None, "fingerprint": ""}
        connection = ParentConnection.to(url(parent.address), lambda: None, **options)  # type: ignore[arg-type]
        await connection.begin()
        await connection.enter(Signature.of([("w", (size,))]))
        line = connection._connection
        assert line is not None and line.ping_timeout == 60.0 + 2 * 4 * size / 10_000
        # Otherwise nothing is waited for at all.
        monkeypatch.setattr(transport, "REPLY_SECONDS", 0.0)
        assert await connection.push(np.ones(size, DTYPE), None) is not None
        await connection.close()
