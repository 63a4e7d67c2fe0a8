"""A Child from its first word to its end, over real sockets.

Most tests run in one event loop. Their backend learns nothing, so weights are compared by value.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from genkidama.child import child as child_module
from genkidama.child import transport
from genkidama.child.backend import Work, make_backend
from genkidama.child.child import Child, ExchangeLog
from genkidama.config.experiment import Experiment
from genkidama.config.role import Role
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.parent import Parent
from genkidama.protocol.messages import PROTOCOL, Hello, Join, Push, Weights, Welcome
from genkidama.protocol.session import BlendReply, Wait
from genkidama.protocol.vector import DTYPE, Signature, Vector
from tests.child.talking import Said, Scripted, child_of
from tests.helpers import (
    PATIENCE,
    ConstantBackend,
    Serving,
    constant,
    eventually,
    history,
    running,
    small,
    url,
)
from tests.parent.fake_child import FakeChild


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "BACKOFF_SECONDS", (0.01, 0.05))
    monkeypatch.setattr(transport, "REPLY_SECONDS", 0.3)


async def test_a_child_starts_from_the_parents_weights(tmp_path: Path) -> None:
    """They are more than a message of the handshake may have."""
    options = {"gain": 0.0, "first": 3.0, "size": 1 << 18}
    async with running(constant(network={"options": options}), tmp_path) as parent:
        async with Serving(child_of(parent, "first")) as first:
            await first.exchanged(2)
        parent.server.trial.vector[:] = 7.0  # type: ignore[index]
        async with Serving(child_of(parent, "second")) as second:
            await second.exchanged(1)
        assert second.backend.blends[0] == (7.0, 7.0, 7.0)


# The end of a run.


async def test_the_child_ends_when_the_run_is_over(tmp_path: Path) -> None:
    async with running(constant(stop={"updates": 3}), tmp_path) as parent:
        child = child_of(parent)
        async with asyncio.timeout(10):
            await child.serve()
        assert isinstance(child.backend.progress, list)  # type: ignore[union-attr]
        assert child.backend.progress == [0.0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0]  # type: ignore[union-attr]
        assert child.backend.ended  # type: ignore[union-attr]
    assert history(tmp_path, "leave")[0]["reason"] == "3 exchanges a child done"


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
    monkeypatch.setattr(child_module, "make_backend", lambda *_: backend)
    async with running(constant(), tmp_path) as parent:
        address = url(parent.address)
        serving = Serving(Child(address, name="pi"))
        await serving.__aenter__()
        await building.wait()
    built.set()
    async with running(constant(), tmp_path, address.removeprefix("ws://")) as parent:
        await eventually(lambda: parent.server.trial.version >= 2)
        await serving.__aexit__(None, None, None)


async def test_a_parent_that_is_lost_between_two_trials_is_found_again() -> None:
    def trial(number: int) -> Welcome:
        return Welcome(protocol=PROTOCOL, experiment=constant().to_dict(), trial=number)

    async with Scripted(
        hello=[trial(0), trial(1), trial(1)],
        join=[Weights(version=0), None],  # the second trial's join has no answer
        push=[
            Weights(version=1, stop="all phases are done", next=True),
            Weights(version=1, stop="all trials are done"),
        ],
    ) as parent:
        async with asyncio.timeout(PATIENCE):
            await Child(parent.url, name="pi").serve()
    assert len(parent.connections) == 2
    assert len(parent.of(Join)()) == 3


# Refusals.


async def test_the_honest_child_gets_in_when_the_wrong_one_goes(tmp_path: Path) -> None:
    async with (
        running(constant(), tmp_path) as parent,
        FakeChild(parent.address, "wrong") as wrong,
    ):
        await wrong.enter()  # it has claimed the run, and pushes nothing
        async with Serving(child_of(parent)) as honest:
            await eventually(lambda: "another network" in honest.child.status)
            await wrong.leave()
            await honest.exchanged(2)
            await eventually(lambda: parent.server.joined == {"pi"})
    assert parent.server.trial.version >= 1


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


async def test_an_address_that_is_none_is_the_users_mistake() -> None:
    with pytest.raises(ConfigurationError, match="expected ws://HOST:PORT"):
        await Child("ws://a..b:1", name="pi").serve()


# The end of a child, at any moment.


@pytest.fixture
def mute() -> Iterator[str]:
    """An address where connections are let in, and never a word is said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield url(listener.getsockname())


@pytest.fixture
def _steadfast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that waits for ten minutes, if it is let, but not when it is to end."""
    monkeypatch.setattr(transport, "BACKOFF_SECONDS", (600.0, 600.0))
    monkeypatch.setattr(transport, "REPLY_SECONDS", 600.0)
    monkeypatch.setattr(transport, "_Connect", partial(transport._Connect, open_timeout=600.0))
    monkeypatch.setattr(child_module, "_LAST_REPLY_SECONDS", 0.1)
    monkeypatch.setattr(child_module, "_FAREWELL_SECONDS", 0.1)


async def stopped(child: Child, moment: Callable[[], Any]) -> None:
    """Has a child serve until this moment, and stops it."""
    task = asyncio.create_task(child.serve())
    await eventually(moment)
    child.stop()
    async with asyncio.timeout(PATIENCE):
        await task


@pytest.mark.usefixtures("_steadfast")
async def test_it_stops_while_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    child, said = Child("ws://127.0.0.1:9", name="pi"), []

    def complained() -> bool:
        said.append(capsys.readouterr().err)
        return "not reachable, still trying" in "".join(said)

    await stopped(child, complained)


@pytest.mark.usefixtures("_steadfast")
async def test_it_stops_while_the_other_end_says_nothing(mute: str) -> None:
    await stopped(Child(mute, name="pi"), lambda: True)


@pytest.mark.usefixtures("_steadfast")
@pytest.mark.parametrize("silent", ["hello", "join", "push", "leave"])
async def test_it_stops_while_it_waits_for_a_reply(silent: str) -> None:
    async with Scripted(**{silent: [None] * 99}) as parent:
        kind = {"hello": Hello, "join": Join}.get(silent, Push)
        child = Child(parent.url, name="pi")
        await stopped(child, parent.of(kind))
        assert child.backend is None or child.backend.ended  # type: ignore[attr-defined]


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
        running(settings, tmp_path / "first" / "run") as parent,
        Serving(child_of(parent, state=tmp_path / "state")) as serving,
    ):
        await serving.exchanged(1)
        serving.backend.weights[:] = 9.0
    assert (tmp_path / "state" / "pi.safetensors").exists()
    # The second parent has lost the weights of this run, and so gets the child's; the third has
    # another run.
    for name, kept in (("run", True), ("another", False)):
        async with (
            running(settings, tmp_path / "second" / name) as parent,
            Serving(child_of(parent, state=tmp_path / "state")) as serving,
        ):
            await serving.exchanged(1)
        assert (serving.backend.blends[0][0] > 5.0) == kept


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
            constant(network={"options": {"size": size}}), tmp_path / f"{size}" / "run"
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


# One run after another.


async def test_a_child_that_stays_takes_part_in_the_next_run_at_the_address(tmp_path: Path) -> None:
    """The second run has the network of the first one and begins anew; the third has another."""
    settings = constant(stop={"updates": 2})
    other = settings.with_settings({"network.options": {"size": 5}})
    listen, child, learned = "127.0.0.1:0", None, []
    for number, experiment in enumerate((settings, settings, other)):
        async with running(experiment, tmp_path / f"{number}", listen) as parent:
            listen = "{}:{}".format(*parent.address)
            if child is None:
                child = child_of(parent, state=tmp_path / "state", stay=True)
                serving = asyncio.create_task(child.serve())
            await eventually(lambda parent=parent: parent.server.stop)
            await eventually(lambda parent=parent: not parent.server.connected)
            learned.append(parent.server.trial.vector)
        assert [each["child"] for each in history(tmp_path / f"{number}", "exchange")] == ["pi"] * 2
    assert child is not None and not serving.done()
    child.stop()
    await serving
    assert learned[0].tolist() == learned[1].tolist() and len(learned[2]) == 5


async def test_a_child_that_stays_goes_over_to_another_experiment(tmp_path: Path) -> None:
    async with running(constant(), tmp_path / "first") as parent:
        listen = "{}:{}".format(*parent.address)
        serving = Serving(child_of(parent, stay=True))
        await serving.__aenter__()
        await serving.exchanged(1)
    other = constant(network={"options": {"first": 3.0, "size": 5}})
    async with running(other, tmp_path / "second", listen) as parent:
        await eventually(lambda: parent.server.trial.version > 1)
        assert parent.server.trial.signature == serving.backend.signature
        await serving.__aexit__()


async def test_the_state_of_a_run_is_not_saved_as_that_of_the_next(tmp_path: Path) -> None:
    settings = constant(network={"options": {"gain": 0.0, "first": 5.0}})
    async with running(settings, tmp_path / "first") as parent:
        listen = "{}:{}".format(*parent.address)
        serving = Serving(child_of(parent, state=tmp_path / "state", stay=True))
        await serving.__aenter__()
        await serving.exchanged(1)
        serving.backend.weights[:] = 9.0
    other = settings.with_settings({"optimizer.learning_rate": 0.1})
    async with running(other, tmp_path / "second", listen) as parent:
        await eventually(lambda: parent.server.trial.version)
        await serving.__aexit__()
        assert parent.server.trial.vector.tolist() == [5.0] * 4


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
    monkeypatch.setattr(child_module, "available_cores", lambda: 6)
    async with running(constant(), tmp_path) as parent:
        role = {"parent": url(parent.address), "cores": "auto", "name": "pi", "allow": ["tests"]}
        child = Child.from_role(Role.from_dict(role))
        async with Serving(child) as serving:
            await serving.exchanged(1)
        assert serving.backend.cores == 6


# What people are told.


@pytest.mark.usefixtures("_patient")
async def test_what_a_child_is_doing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "parent not reachable, still trying")
    settings = constant()
    async with running(settings, tmp_path / "run") as parent:
        where = url(parent.address)
        child = Child(where, name="pi")
        assert child.status == f"waiting for {where}"
        serving = Serving(child)
        await serving.__aenter__()
        await serving.exchanged(3)
        await eventually(
            lambda: (
                child.status == "training CartPole-v1 on 1 core, "
                f"version {parent.server.trial.version}, last exchange 0 s ago"
            )
        )
        version = parent.server.trial.version
    await eventually(lambda: "nobody listens" in child.status)
    assert child.status.startswith("training CartPole-v1 on 1 core, version ")
    assert f", waiting for {where}: nobody listens at {where}: " in child.status
    assert int(child.status.split("version ")[1].split(",")[0]) >= version
    async with running(settings, tmp_path / "run", where.removeprefix("ws://")):
        await eventually(lambda: child.status.endswith("last exchange 0 s ago"))
    await eventually(lambda: "nobody listens" in child.status)
    await serving.__aexit__(None, None, None)
    assert (
        said.reasons()
        == [f"nobody listens at {where}: is the parent started, and are host and port right?"] * 2
    )


# What it may be told to import.


async def test_a_child_imports_nothing_that_its_owner_does_not_allow(tmp_path: Path) -> None:
    """A parent that is taken over names `subprocess:Popen`, with any arguments."""
    mark = tmp_path / "taken over"
    hostile = constant(
        child={"backend": "hogwild"},
        environment={"id": "subprocess:Popen", "options": {"args": ["touch", str(mark)]}},
    )
    async with running(hostile, tmp_path / "run") as parent:
        child = Child(url(parent.address), name="pi", allow=["my_module"])
        async with asyncio.timeout(20):
            with pytest.raises(ConfigurationError, match="this child may not import 'subprocess'"):
                await child.serve()
    assert child.backend is None and not mark.exists()


async def test_children_have_the_settings_that_the_parents_file_has_for_their_names(
    tmp_path: Path,
) -> None:
    text = """
[[children]]
name = "pi-*"
settings = { "environment.options.friction" = 0.2, "environment.options.port" = "tty:0" }

[[children]]
name = "pi-2"
settings.environment = { lanes = 4, options = { friction = 0.4 } }
"""
    experiment = Experiment.from_dict(constant().to_dict() | tomllib.loads(text))
    own = {"environment.options.port": "tty:1"}
    async with running(experiment, tmp_path) as parent:
        children = [
            Serving(child_of(parent, "pi-1")),
            Serving(child_of(parent, "pi-2", settings=own)),
            Serving(child_of(parent, "gpu")),
        ]
        found = []
        for child in children:
            async with child:
                await child.exchanged(2)
                environment = child.backend.experiment.environment
                found.append((environment.options, environment.lanes))
    assert found == [
        ({"friction": 0.2, "port": "tty:0"}, 1),
        ({"friction": 0.4, "port": "tty:1"}, 4),
        ({}, 1),
    ]


async def test_a_child_imports_what_is_on_its_list(tmp_path: Path) -> None:
    async with running(constant(stop={"updates": 2}), tmp_path) as parent:
        async with asyncio.timeout(20):
            await Child(url(parent.address), name="pi", allow=["tests"]).serve()
        assert parent.server.exchanges >= 2


def test_a_child_without_a_parent_keeps_the_newest_returns_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(child_module.time, "monotonic", lambda: now)
    log = ExchangeLog()
    log.worked(1, [-1e6])
    for _ in range(4096):
        log.worked(1, [1.0])
    now += 60.0
    with capture_logs() as lines:
        log.exchanged("pi", 1)
    assert lines[0]["mean_return"] == 1.0
    assert log.episodes == 4097


async def test_a_child_whose_exchanges_are_due_at_once_can_be_stopped(tmp_path: Path) -> None:
    async with running(constant(network={"options": {"seconds": 0}}), tmp_path) as parent:
        serving = Serving(Child(url(parent.address), name="pi"))
        async with serving:
            await serving.exchanged(3)
        assert serving.task.done() and not parent.server.connected


class Chunks(ConstantBackend):
    """A backend that learns a chunk in no time, and notes each that begins."""

    hidden = (0.0, 0.01)
    pulls = False

    def __init__(self) -> None:
        super().__init__(constant(), 1, "pi")
        self.learned = 0

    async def due(self) -> None:
        await asyncio.sleep(0)
        self.pulls = not self.pulls

    def release(self) -> None:
        self.learned += self.pulls

    def take_work(self) -> Work:
        return Work(1, [], {"loss": 1.0})


async def test_a_backend_without_pulls_exchanges_chunks(tmp_path: Path) -> None:
    chunks = constant(
        algorithm={"batch_size": 32},
        child={"exchange": "chunk", "exchange_seconds": 0.01},
    )
    async with (
        running(chunks, tmp_path) as parent,
        Serving(child_of(parent)) as serving,
    ):
        await serving.exchanged(2)


@pytest.mark.parametrize(("usual", "learned"), [(None, 0), (0.001, 0), (0.2, 4)])
async def test_over_a_slow_link_a_child_learns_four_chunks_at_most_before_an_answer(
    usual: float | None, learned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, backend = Child("ws://127.0.0.1:1", name="pi"), Chunks()
    child._session.experiment = Experiment.from_dict({"child": {"exchange": "chunk"}})
    for _ in range(0 if usual is None else 9):
        child._patience.waited(usual or 0.0)
    monkeypatch.setattr(child._health, "figures", lambda *_: {})
    told: list[dict[str, float]] = []
    add = child._connection.gather
    monkeypatch.setattr(
        child._connection, "gather", lambda work: told.append(work.measures) or add(work)
    )

    async def answer() -> Any:
        await eventually(lambda: backend.learned >= learned)
        for _ in range(50):  # in which it could learn more
            await asyncio.sleep(0)
        return Wait(0.0)

    assert await child._patiently(answer(), backend) == Wait(0.0)
    assert backend.learned == learned
    assert child._learned == learned
    backend.pulls = False
    await child._exchange(backend)  # a push, though nobody is there
    assert told[-1].get("chunks") == (learned or None)
    # The newest answers count, however slow the link has been.
    for _ in range(9):
        child._patience.waited(0.001)
    await child._patiently(answer(), backend)
    assert backend.learned == learned


async def test_how_long_an_answer_took_is_told_also_if_the_child_has_gone_on_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a link that becomes slow would never be known to be."""
    child, backend = Child("ws://127.0.0.1:1", name="pi"), Chunks()
    child._session.experiment = Experiment.from_dict({"child": {"exchange": "chunk"}})
    for _ in range(9):
        child._patience.waited(0.2)
    monkeypatch.setattr(child._health, "figures", lambda *_: {})
    told: list[float] = []
    parts: dict[str, Any] = {"waited": told.append, "weights": lambda: np.zeros(3), "pulls": True}
    for name, part in parts.items():
        monkeypatch.setattr(backend, name, part, raising=False)

    async def answer(_: Vector) -> BlendReply:
        await eventually(lambda: backend.learned)
        return BlendReply(0.5)

    monkeypatch.setattr(child._connection, "pull", answer)
    await child._pull(backend)  # type: ignore[arg-type]
    assert len(told) == 1 and told[0] > 0.0 and child._learned


async def test_a_child_measures_its_machine_every_five_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Child("ws://127.0.0.1:1", name="pi")
    backend: Any = ConstantBackend(constant(), 1, "pi")
    measured: list[float] = []

    def figures(run: str, now: float) -> dict[str, float]:
        measured.append(now)
        return {}

    monkeypatch.setattr(child._health, "figures", figures)
    for now in (100.0, 104.9, 105.0, 109.9, 110.1):
        monkeypatch.setattr(child_module.time, "monotonic", lambda now=now: now)
        child._gather(backend)
    assert measured == [100.0, 105.0, 110.1]


def test_now_and_then_a_child_says_that_it_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(child_module.time, "monotonic", lambda: now)
    log = ExchangeLog()
    with capture_logs() as lines:
        for version in range(1, 26):
            now += 1.0
            log.worked(50, [float(version)])
            log.exchanged("pi", version)
        log.left("pi", "again", "25 exchanges a child done")
    assert lines == [
        {
            "event": "exchanging",
            "log_level": "info",
            "child": "pi",
            "version": version,
            "exchanges": version,
            "steps_per_second": 50,
            "mean_return": mean,
        }
        for version, mean in ((10, 5.5), (20, 15.5))
    ] + [
        {
            "event": "left",
            "log_level": "info",
            "child": "pi",
            "reason": "25 exchanges a child done",
            "exchanges": 25,
            "steps": 1250,
            "episodes": 25,
            "seconds": 25,
            "next": "again",
        }
    ]


# A link that is cut without a sign.


@asynccontextmanager
async def cuttable(parent: Parent) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """An address that leads to the parent, and an event: while it is not set, nothing arrives."""
    whole = asyncio.Event()
    whole.set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await whole.wait()
                writer.write(data)
        writer.close()

    async def link(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(*parent.address)
        await asyncio.gather(carry(reader, forth), carry(back, writer))

    async with await asyncio.start_server(link, "127.0.0.1", 0) as server:
        yield url(server.sockets[0].getsockname()), whole


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("rule", ["difference", "blend"])
async def test_in_chunks_a_child_learns_on_while_its_link_is_cut(rule: str, tmp_path: Path) -> None:
    experiment = small(
        algorithm={"name": "ppo", "batch_size": 32, "minibatch_size": 8},
        child={"exchange": "chunk"},
        parent={"rule": rule},
    )
    async with running(experiment, tmp_path) as parent, cuttable(parent) as (address, whole):
        child = Child(address, name="pi")
        async with Serving(child):
            await eventually(lambda: child.counts.exchanges >= 3)
            whole.clear()
            steps, version = child.counts.steps, parent.server.trial.version
            await eventually(lambda: child.counts.steps >= steps + 8 * 32)  # and not one chunk
            assert parent.server.trial.version <= version + 1
            exchanges = child.counts.exchanges
            whole.set()
            await eventually(lambda: child.counts.exchanges >= exchanges + 3)
    assert len(history(tmp_path, "join")) == 1
    pushes = history(tmp_path, "exchange")
    assert pushes[-1]["steps"] == child.counts.steps  # all of its work has been counted, and once
    assert max(line["staleness"] for line in pushes) <= 2
