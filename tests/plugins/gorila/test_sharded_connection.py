"""A child and a parent in parts: what comes out is what a parent in one piece makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest
from structlog.testing import capture_logs

from genkidama.child import transport
from genkidama.child.child import Child
from genkidama.cli.access import fingerprint_of, make_certificate
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, GenkidamaError
from genkidama.parent import Parent
from genkidama.plugins.gorila.sharded_connection import ShardedConnection, gather_all, wait_any
from genkidama.protocol.messages import PROTOCOL, Hello, Welcome
from genkidama.protocol.session import Begin, BlendReply
from genkidama.protocol.shard import Shard
from genkidama.protocol.vector import DTYPE, Signature, Vector
from genkidama.runs import sharded_checkpoint
from genkidama.runs.checkpoint import Checkpoint
from tests.certificates import needs_openssl
from tests.child.talking import Scripted
from tests.helpers import (
    ConstantBackend,
    Serving,
    constant,
    eventually,
    history,
    running,
    url,
)
from tests.parent.fake_child import FakeChild

SIZE = 11


class Uneven(ConstantBackend):
    """All its weights differ, and its gradients, too; three running statistics end them."""

    def __init__(self, experiment: Experiment, cores: int, name: str) -> None:
        super().__init__(experiment, cores, name)
        entries = [("a", (2, 3)), ("b", (SIZE - 9,)), ("statistics.returns", (3,))]
        self.signature = Signature.of(entries)
        self.weights = np.arange(SIZE, dtype=DTYPE)
        self.blended: list[Vector] = []

    async def begin(self, weights: Vector | None, version: int = 0) -> None:
        await super().begin(weights, version)
        self.given = weights

    async def due(self) -> None:
        await super().due()
        self.weights += np.linspace(-1.0, 2.0, SIZE, dtype=DTYPE)

    def gradient(self) -> Vector:
        return np.sin(self.weights[:-3] * DTYPE.type(self.exchanges))

    def blend(self, sent: Vector, parent: Vector, beta: float) -> None:
        super().blend(sent, parent, beta)
        self.blended.append(self.weights.copy())


class Diverging(Uneven):
    """Its last trained number becomes infinite once."""

    async def due(self) -> None:
        await super().due()
        if self.exchanges == 3:
            self.weights[-4] = np.inf


def uneven(kind: type[ConstantBackend] = Uneven, **sections: dict[str, Any]) -> Experiment:
    child = {"backend": f"{__name__}:{kind.__name__}", **sections.pop("child", {})}
    return constant(child=child, **sections)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "BACKOFF_SECONDS", (0.01, 0.05))


@asynccontextmanager
async def in_parts(
    experiment: Experiment, out: Path, count: int, *listen: str
) -> AsyncIterator[list[Parent]]:
    async with AsyncExitStack() as stack:
        parts = [Shard(number, count) for number in range(1, count + 1)]
        places = zip(listen or ["127.0.0.1:0"] * count, parts, strict=True)
        running_parts = [running(experiment, out, place, part) for place, part in places]
        parents = [await stack.enter_async_context(each) for each in running_parts]
        for parent in parents:
            parent.server.secret = "of all parts"
        yield parents


def child_of(parents: list[Parent], name: str = "pi", **options: Any) -> Child:
    return Child(",".join(url(parent.address) for parent in parents), name=name, **options)


async def end(child: Child, after: int) -> Uneven:
    """Its backend, when it has made so many exchanges and has left."""
    async with Serving(child) as serving:
        await serving.exchanged(after)
    assert isinstance(serving.backend, Uneven)
    return serving.backend


def written(run: Path) -> Checkpoint:
    return sharded_checkpoint.load(max((run / "checkpoints").glob("version*")))


async def trained(experiment: Experiment, out: Path, count: int) -> Checkpoint:
    """The checkpoint of one child's run to its end."""
    async with in_parts(experiment, out, count) as parents:
        child = child_of(parents)
        await child.serve()
        assert [parent.server.stop for parent in parents] == ["6 exchanges a child done"] * count
    return written(out)


GRADIENTS = {"exchange": "update"}


@pytest.mark.parametrize(
    "sections",
    [
        {"parent": {"alpha": 0.25}, "child": {"beta": 0.5}},
        {"parent": {"rule": "weighted", "rule_options": {"buffer": 2}, "average": 0.5}},
        {
            "parent": {
                "rule": "difference",
                # Each shard would bound its own part of a difference by its own part of θ_P.
                "rule_options": {"momentum": 0.9, "nesterov": True, "max_difference": 0.0},
                "encoding": "float16",
            }
        },
        {"parent": {"rule": "gradient"}, "optimizer": {"name": "adam"}, "child": GRADIENTS},
        {"parent": {"rule": "gradient"}, "optimizer": {"schedule": "linear"}, "child": GRADIENTS},
    ],
    ids=["blend", "weighted", "difference", "adam", "schedule"],
)
async def test_parts_make_what_the_whole_makes(
    tmp_path: Path, sections: dict[str, dict[str, Any]]
) -> None:
    experiment = uneven(stop={"updates": 6}, **sections)
    whole = await trained(experiment, tmp_path / "whole", 1)
    parts = await trained(experiment, tmp_path / "parts", 3)
    assert parts.vector.tobytes() == whole.vector.tobytes()
    assert parts.signature == whole.signature
    same = ("version", "updates", "episodes", "steps", "returns", "part", "whole")
    assert [getattr(parts.snapshot, name) for name in same] == [
        getattr(whole.snapshot, name) for name in same
    ]
    assert parts.state.keys() == whole.state.keys()
    for name, array in whole.state.items():
        np.testing.assert_allclose(parts.state[name], array, rtol=1e-9)  # one holds the time
    lines = [history(tmp_path / name, "exchange") for name in ("parts", "whole")]
    # A part judges the distance by its own numbers.
    alike = [[{**line, "time": 0.0, "distance": 0.0} for line in found] for found in lines]
    assert alike[0] == alike[1]
    assert len(history(tmp_path / "parts" / "parts" / "2-of-3", "exchange")) == 6


async def test_with_int8_each_part_has_scales_of_its_own(tmp_path: Path) -> None:
    experiment = uneven(parent={"encoding": "int8"}, stop={"updates": 6})
    whole = await trained(experiment, tmp_path / "whole", 1)
    parts = await trained(experiment, tmp_path / "parts", 3)
    np.testing.assert_allclose(parts.vector, whole.vector, atol=0.1)
    assert parts.vector[-3:].tobytes() == whole.vector[-3:].tobytes()  # statistics travel whole


@needs_openssl
async def test_parts_may_have_certificates_of_their_own(tmp_path: Path) -> None:
    marks = []
    async with AsyncExitStack() as stack:
        parents = []
        for number in (1, 2):
            files = [tmp_path / f"{kind}-{number}.pem" for kind in ("certificate", "key")]
            make_certificate(*files)
            marks.append(fingerprint_of(files[0]))
            secured = {"certificate_file": str(files[0]), "key_file": str(files[1])}
            part = running(uneven(parent=secured), tmp_path / "run", part=Shard(number, 2))
            parents.append(await stack.enter_async_context(part))
        places = [url(parent.address).replace("ws:", "wss:") for parent in parents]
        child = Child(",".join(places), name="pi", fingerprint=",".join(marks))
        async with Serving(child) as serving:
            await serving.exchanged(2)
        assert all(parent.server.trial.version for parent in parents)
        one_for_both = Child(",".join(places), name="other", fingerprint=marks[0])
        async with Serving(one_for_both):
            await eventually(lambda: "certificate is another one" in one_for_both.status)
    with pytest.raises(ConfigurationError, match=r"names 3 certificates, and parent = .* 2 parts"):
        Child(",".join(places), fingerprint=",".join([*marks, marks[0]]))


@pytest.mark.parametrize("rule", ["blend", "gradient"])
async def test_a_part_that_dies_and_returns_stops_nobody(tmp_path: Path, rule: str) -> None:
    exchange = "update" if rule == "gradient" else "free"
    settings: dict[str, Any] = {"rule": rule, "checkpoint_updates": 1}
    experiment = uneven(parent=settings, child={"exchange": exchange})
    first = running(experiment, tmp_path, part=Shard(1, 2))
    async with first as one, AsyncExitStack() as life:
        two = await life.enter_async_context(running(experiment, tmp_path, part=Shard(2, 2)))
        async with Serving(child_of([one, two])) as serving:
            await serving.exchanged(3)
            host, port = two.address
            await life.aclose()
            gone = two.server.trial.version
            before = one.server.trial.version
            await serving.exchanged(5)
            assert one.server.trial.version >= before + 4
            assert f", waiting for ws://{host}:{port}" in serving.child.status
            again = running(experiment, tmp_path, f"{host}:{port}", part=Shard(2, 2))
            async with again as back:
                assert back.server.trial.version == gone
                await eventually(lambda: back.server.trial.version > gone + 1)
                # What was done meanwhile is told late.
                assert back.server.trial.steps >= 10 * (gone + 5)
                serving.child.stop()
                await serving.task
    half = Shard(2, 2).numbers(serving.backend.signature)
    found = written(tmp_path).vector
    assert np.isfinite(found).all()
    assert back.server.trial.vector is not None
    assert found[half].tobytes() == back.server.trial.vector.tobytes()
    # A push whose reply was cut off is counted again by a parent that has started again.
    assert back.server.trial.steps - one.server.trial.steps in (0, 10)


async def test_a_part_that_comes_back_with_nothing_is_given_the_childs_slice(
    tmp_path: Path,
) -> None:
    experiment = uneven()
    async with running(experiment, tmp_path / "a", part=Shard(1, 2)) as one:
        async with running(experiment, tmp_path / "b", part=Shard(2, 2)) as two:
            await end(child_of([one, two]), after=3)
        known = one.server.trial.vector
        assert known is not None
        theirs = known.tolist()
        async with running(experiment, tmp_path / "c", part=Shard(2, 2)) as empty:
            backend = await end(child_of([one, empty], "other"), after=2)
            assert empty.server.trial.vector is not None
    own = np.arange(SIZE, dtype=DTYPE)[Shard(2, 2).numbers(backend.signature)]
    assert backend.given is not None
    assert backend.given.tolist() == [*theirs, *own.tolist()]


async def test_with_gradients_a_child_waits_for_one_part_and_not_for_all(tmp_path: Path) -> None:
    experiment = uneven(parent={"rule": "gradient"}, child={"exchange": "update"})
    async with AsyncExitStack() as life:
        names = [Shard(1, 2), Shard(2, 2)]
        parents = [
            await life.enter_async_context(running(experiment, tmp_path, part=part))
            for part in names
        ]
        async with Serving(child_of(parents)) as serving:
            await serving.exchanged(2)
            place = ":".join(map(str, parents[0].address))
            await life.aclose()
            await eventually(lambda: not any(parent.server.joined for parent in parents))
            done = parents[0].server.trial.version
            async with running(experiment, tmp_path, place, part=names[0]) as back:
                await eventually(lambda: back.server.trial.version > done + 2)
                serving.child.stop()
                await serving.task


async def test_a_slice_that_diverges_is_taken_from_the_parent_with_all_others(
    tmp_path: Path,
) -> None:
    async with (
        in_parts(uneven(Diverging), tmp_path, 2) as parents,
        Serving(child_of(parents)) as serving,
    ):
        await serving.exchanged(6)
    assert [parent.server.refusals["finite"] for parent in parents] == [0, 1]
    assert len(serving.backend.resets) == 1
    assert np.isfinite(serving.backend.weights).all()


async def test_parts_that_run_different_experiments_refuse_the_child(tmp_path: Path) -> None:
    ours = uneven(parent={"listen": "127.0.0.1:1"})
    theirs = uneven(parent={"listen": "127.0.0.1:2", "alpha": 0.75})
    async with (
        running(ours, tmp_path / "a", part=Shard(1, 2)) as one,
        running(theirs, tmp_path / "b", part=Shard(2, 2)) as two,
    ):
        places = [url(one.address), url(two.address)]
        with pytest.raises(ConfigurationError) as caught:
            await child_of([one, two]).serve()
    assert str(caught.value) == (
        f"{places[0]} and {places[1]} run different experiments "
        "(parent.alpha = 0.5 and 0.75); start all parts with the same one"
    )


@pytest.mark.parametrize(("order", "found"), [((1, 0), "part 1/2"), ((0,), "part 1/1")])
async def test_a_child_that_knows_other_parts_is_refused(
    tmp_path: Path, order: tuple[int, ...], found: str
) -> None:
    async with in_parts(uneven(), tmp_path, 2) as parents:
        with pytest.raises(GenkidamaError) as caught:
            await child_of([parents[index] for index in order]).serve()
        assert f"child 'pi' comes for {found} of a parent, this is part" in str(caught.value)
        assert "give it the addresses of all parts, in their order" in str(caught.value)
        assert sum(parent.server.refusals["part"] for parent in parents) == 1


async def test_a_parent_that_knows_no_parts_is_named() -> None:
    async with Scripted() as one, Scripted() as two:
        with pytest.raises(GenkidamaError) as caught:
            await Child(f"{one.url},{two.url}", name="pi").serve()
        (hello,) = one.of(Hello)()
    assert hello.part == "1/2"
    assert str(caught.value) == (
        f"{one.url} is part 1/1 of a parent, this child takes it for part 1/2; "
        "list the addresses of all parts in their order"
    )


async def test_a_child_that_stays_takes_part_in_the_next_run_of_all_parts(tmp_path: Path) -> None:
    experiment = uneven(stop={"updates": 2})
    async with in_parts(experiment, tmp_path / "a", 2) as parents:
        listen = ["{}:{}".format(*parent.address) for parent in parents]
        child = child_of(parents, stay=True)
        task = asyncio.create_task(child.serve())
        await eventually(lambda: all(parent.server.stop for parent in parents))
    async with in_parts(experiment, tmp_path / "b", 2, *listen) as parents:
        await eventually(lambda: all(parent.server.stop for parent in parents))
        assert not task.done()
        child.stop()
        await task
    assert written(tmp_path / "b").vector.tolist() == written(tmp_path / "a").vector.tolist()


async def test_a_child_that_stays_waits_until_all_parts_have_the_new_experiment(
    tmp_path: Path,
) -> None:
    old, new = uneven(), uneven(parent={"alpha": 0.75}, stop={"updates": 2})
    async with running(new, tmp_path / "new", part=Shard(1, 2)) as first:
        async with running(old, tmp_path / "old", part=Shard(2, 2)) as late:
            listen = "{}:{}".format(*late.address)
            child = child_of([first, late], stay=True)
            with capture_logs() as said:
                task = asyncio.create_task(child.serve())
                await eventually(lambda: "run different experiments (parent.alpha" in str(said))
        async with running(new, tmp_path / "new", listen, part=Shard(2, 2)):
            await eventually(lambda: first.server.stop)
            child.stop()
            await task


async def test_parts_of_two_networks_refuse_the_child_and_are_named(tmp_path: Path) -> None:
    async with in_parts(uneven(stop={"updates": 2}), tmp_path / "a", 2) as parents:
        await child_of(parents).serve()
    async with (
        running(constant(), tmp_path / "b", part=Shard(1, 2)) as one,
        running(constant(), tmp_path / "a", part=Shard(2, 2)) as two,
        Serving(child_of([one, two])) as serving,
    ):
        child = serving.child
        await eventually(lambda: "has another network: parameter 0 is" in child.status)
        assert f"waiting for {url(two.address)}: the parent refuses" in child.status
        assert not serving.task.done()


async def test_a_name_that_the_first_part_has_numbered_is_used_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genkidama.child.parent_connection.machine_name", lambda: "pi")
    async with in_parts(uneven(), tmp_path, 2) as parents, FakeChild(parents[0].address) as other:
        hello = Hello(protocol=PROTOCOL, name="pi", session="another", part="1/2")
        assert isinstance(await other.ask(hello), Welcome)
        async with Serving(child_of(parents, "")) as serving:
            await serving.exchanged(1)
            assert serving.child.name == "pi-2"
            assert [sorted(parent.server.joined) for parent in parents] == [["pi-2"], ["pi-2"]]


async def test_a_child_that_is_told_to_stop_ends_no_part(tmp_path: Path) -> None:
    async with in_parts(uneven(stop={"updates": 10_000}), tmp_path, 2) as parents:
        async with Serving(child_of(parents)) as serving:
            await serving.exchanged(2)
            assert serving.child.status.startswith("training CartPole-v1 on 1 core, version")
        assert [parent.server.stop for parent in parents] == ["", ""]
        assert [parent.server.connected for parent in parents] == [[], []]


def to_two_parts() -> ShardedConnection:
    parent = "ws://127.0.0.1:1,ws://127.0.0.1:2"
    options = {"name": "pi", "role": "", "token": "", "ca_file": None}
    return ShardedConnection.to(parent, lambda: None, fingerprint="", **options)


async def test_a_child_begins_with_what_the_first_part_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection, slices = to_two_parts(), np.arange(4, dtype=DTYPE).reshape(2, 2)
    for number, shard in enumerate(connection._shards):
        begin = Begin(3 - number, 0.5 - number / 4, slices[number], 7 - number, 2.5 - number)
        monkeypatch.setattr(shard, "enter", AsyncMock(return_value=begin))
    decision = await connection.enter(Signature.of([("weight", (4,))]))
    assert isinstance(decision, Begin)
    assert decision == Begin(version=3, progress=0.5, steps=7, children=2.5)
    assert decision.vector is not None and decision.vector.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_what_is_blended_is_what_each_part_was_sent() -> None:
    """A difference without an answer is sent again as it was, and the child has learned since."""

    connection = to_two_parts()
    connection._numbers = [slice(0, 2), slice(2, 4)]
    now = np.array([5, 5, 5, 5], DTYPE)
    answer = BlendReply(0.5, np.array([1, 2], DTYPE), np.array([2, 4], DTYPE), 7)
    decision = connection._combined([answer, None], now)
    assert isinstance(decision, BlendReply)
    assert (decision.progress, decision.steps) == (0.5, 7)
    assert decision.sent is not None and decision.sent.tolist() == [1.0, 2.0, 5.0, 5.0]
    assert decision.vector is not None and decision.vector.tolist() == [2.0, 4.0, 5.0, 5.0]
    # Without the first shard, progress stays what it was.
    decision = connection._combined([None, BlendReply(0.9, now[2:], now[2:] + 1, 9)], now)
    assert isinstance(decision, BlendReply)
    assert (decision.progress, decision.steps) == (0.5, 7)
    assert decision.vector is not None and decision.vector.tolist() == [5.0, 5.0, 6.0, 6.0]


def test_without_this_plug_in_several_addresses_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("genkidama.child.parent_connection.find", lambda hook, name: None)
    with pytest.raises(ConfigurationError, match=r": 2 addresses, and no plug-in connects to a"):
        Child("ws://127.0.0.1:1,ws://127.0.0.1:2")
    assert Child("ws://127.0.0.1:1").parent == "ws://127.0.0.1:1"


async def _later(value: int, ended: list[int]) -> int:
    try:
        await asyncio.sleep(0.01 * value)
        return value
    finally:
        ended.append(value)


async def _fail() -> int:
    raise ValueError("no")


async def test_the_first_error_ends_the_others() -> None:
    ended: list[int] = []
    with pytest.raises(ValueError, match="no"):
        await gather_all([_later(1000, ended), _fail()])
    assert ended == [1000]


async def test_the_first_end_ends_the_others() -> None:
    ended: list[int] = []
    await wait_any(_later(value, ended) for value in (1, 1000))
    assert ended == [1, 1000]


async def test_what_is_cancelled_cancels_all() -> None:
    ended: list[int] = []
    task = asyncio.create_task(gather_all(_later(value, ended) for value in (1000, 2000)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == [1000, 2000]
