"""A browser as a child: a second implementation of the protocol, held to the first."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.parent import Parent
from genkidama.plugins.actors import learner_process
from genkidama.plugins.actors.rule import columns_of
from genkidama.protocol.messages import (
    Hello,
    Join,
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
from genkidama.runs.evaluation import evaluate
from tests.helpers import ROOT, Started, constant, free_port, history, running, until
from tests.parent.fake_child import FakeChild
from tests.parent.test_authentication import bearer
from tests.plugins.dashboard.browser import Look, facts, picture, violations
from tests.plugins.dashboard.node import Node, in_node
from tests.plugins.dashboard.test_real_runs import LONG, a_parent
from tests.plugins.dashboard.test_run_browser import fetch

TOKEN = "token-of-the-phone-1"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with in_node(
        tmp_path_factory.mktemp("modules"),
        ("acting", "environments", "messages", "policy"),
        'import { Actor, problem, signature } from "./acting.mjs";',
        'import { decode, encode } from "./messages.mjs";',
    ) as node:
        yield node


# Messages.

ROWS = np.array([1.0, -2.0, 1e-30, 3.5], np.float32)

#: What a browser says, as a map and as the struct that it is.
SAID: list[tuple[dict[str, Any], list[float] | None, Request]] = [
    ({"type": "leave"}, None, Leave()),
    ({"type": "leave", "reason": "ü" * 20 + "x" * 100}, None, Leave(reason="ü" * 20 + "x" * 100)),
    ({"type": "pull", "wait": True}, None, Pull(wait=True)),
    (
        {"type": "hello", "protocol": 2, "name": "pi", "session": "s" * 40, "software": "browser"},
        None,
        Hello(protocol=2, name="pi", session="s" * 40, software="browser"),
    ),
    (
        {"type": "join", "signature": [["w", [3, 70_000]], ["b", [200]]], "cores": 1},
        None,
        Join(signature=[("w", [3, 70_000]), ("b", [200])], cores=1),
    ),
    (
        {
            "type": "push",
            "version": 2**40,
            "sequence": 1,
            "kind": "experience",
            "steps": 300,
            "returns": [*([-1.5] * 20), 5],
        },
        ROWS.tolist(),
        Push(
            version=2**40,
            sequence=1,
            kind="experience",
            steps=300,
            returns=[*([-1.5] * 20), 5.0],
            vector=ROWS,
        ),
    ),
]


def same(one: Any, other: Any) -> bool:
    names = [name for name in type(one).__struct_fields__ if name != "vector"]
    vectors = (getattr(one, "vector", None), getattr(other, "vector", None))
    if vectors[0] is None or vectors[1] is None:
        assert vectors == (None, None)
    else:
        np.testing.assert_array_equal(*vectors)
    return all(getattr(one, name) == getattr(other, name) for name in names)


def test_what_a_browser_says_is_understood(node: Node) -> None:
    body = """
    return data.said.map(([map, rows]) => [...encode(map, rows && Float32Array.from(rows))]);
    """
    found = node(body, said=[(said, rows) for said, rows, _ in SAID])
    for raw, (_, _, expected) in zip(found, SAID, strict=True):
        assert same(decode_request(bytes(raw)), expected)
    # The example of docs/reference/protocol.md, to the byte.
    assert bytes(found[0]).hex(" ") == "0c 00 00 00 81 a4 74 79 70 65 a5 6c 65 61 76 65"


def test_a_browser_understands_what_a_parent_says(node: Node) -> None:
    experiment = Experiment().to_dict()
    replies: list[Reply] = [
        Welcome(protocol=2, experiment=experiment, run="run-1"),
        Weights(version=2**40, progress=0.125, stop="ü" * 300, steps=64, vector=ROWS),
        Weights(version=7),
        Refusal(code="name", reason="x" * 70_000, final=True),
    ]
    body = """
    return data.said.map((raw) => {
      const [map, vector] = decode(Uint8Array.from(raw).buffer);
      return [map, vector && [...vector]];
    });
    """
    found = node(body, said=[list(encode(reply)) for reply in replies])
    (welcome, _), (weights, vector), (empty, nothing), (refusal, _) = found
    assert welcome["type"] == "welcome" and welcome["experiment"] == json.loads(
        json.dumps(experiment)
    )
    assert weights["version"] == 2**40 and weights["progress"] == 0.125 and weights["steps"] == 64
    assert weights["stop"] == "ü" * 300 and vector == ROWS.astype(float).tolist()
    assert empty == {"type": "weights", "version": 7} and nothing is None
    assert (
        refusal["code"] == "name" and refusal["final"] is True and len(refusal["reason"]) == 70_000
    )


# Experience.


def acting(environment: str, **changes: Any) -> Experiment:
    settings = {"environment.id": environment, "network.hidden": [8, 9], "algorithm.name": "ppo"}
    settings |= {"parent.rule": "experience", "algorithm.gamma": 0.9}
    return Experiment().with_settings({**settings, **changes})


EXPERIMENTS = [
    acting("CartPole-v1"),
    acting("CartPole-v1", **{"network.shared": True}),
    acting("CartPole-v1", **{"environment.normalize_observations": True}),
    acting("Pendulum-v1", **{"environment.normalize_rewards": True}),
    acting("Acrobot-v1"),
    acting("MountainCar-v0"),
    acting("MountainCarContinuous-v0", **{"network.activation": "relu"}),
    acting("CartPole-v1", **{"network.memory": 5, "environment.normalize_observations": True}),
    acting("Pendulum-v1", **{"network.memory": 3, "network.hidden": [8]}),
]


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda each: each.environment.id)
def test_rows_of_a_browser_are_those_of_the_protocol(node: Node, experiment: Experiment) -> None:
    env = make_environment(experiment.environment)
    model = Model(experiment, env)
    if (moments := model.moments("observations")) is not None:
        moments.add(np.random.default_rng(0).normal(0.3, 0.5, (50, model.observation_size)))
    body = """
    const actor = new Actor(data.experiment, seeded(5));
    actor.take(Float32Array.from(data.weights));
    const blocks = data.steps.map((steps) => actor.collect(steps));
    return [problem(data.experiment), signature(data.experiment),
      blocks.map(({ rows, steps, returns }) => [[...rows], steps, returns])];
    """
    sizes = [1, 300, 450, 100]
    why, entries, blocks = node(
        body, experiment=experiment.to_dict(), weights=model.numbers.tolist(), steps=sizes
    )
    assert why == ""
    assert [(name, tuple(shape)) for name, shape in entries] == list(model.signature.entries)
    columns, returns, total, discounted = columns_of(model), [], 0.0, 0.0
    state = np.zeros(model.memory)
    for raw, steps, ended in blocks:
        rows = np.array(raw, np.float32).reshape(-1, columns.count)
        assert columns.problem(rows) == ""
        made = rows[rows[:, columns.following] > 0]
        assert len(made) == steps
        outputs, _ = model.evaluate(model.native(model.seen(made[:, : columns.observation])))
        for number in range(steps if model.memory else 0):
            np.testing.assert_allclose(made[number, : model.memory], state, atol=1e-5)
            state = model.network.state[number]
            after = rows[number + int(made[number, columns.following])]
            if not made[number, columns.terminated]:
                np.testing.assert_allclose(after[: model.memory], state, atol=1e-5)
            if made[number, columns.terminated] or made[number, columns.truncated]:
                state = np.zeros(model.memory)
        actions = made[:, columns.actions]
        log = model.log_probability(outputs, actions.astype(model.head.dtype))
        np.testing.assert_allclose(made[:, columns.log_mu], log, atol=2e-4)
        for row, after in pairwise(made):
            if row[columns.following] == 1 and not row[columns.terminated]:
                # The next row has what followed: its own step begins there.
                assert np.abs(after[: columns.observation] - row[: columns.observation]).max() > 0
        for row in made:
            total += float(row[columns.reward])
            discounted = experiment.algorithm.gamma * discounted + float(row[columns.reward])
            if columns.discounted:
                assert row[-1] == pytest.approx(discounted, rel=1e-4)
            if row[columns.terminated] or row[columns.truncated]:
                returns.append(total)
                total = discounted = 0.0
        assert ended == pytest.approx(returns[len(returns) - len(ended) :], rel=1e-4)
        assert steps < 200 or ended or experiment.environment.id.endswith(("Continuous-v0", "-v1"))
    assert sum(len(ended) for _, _, ended in blocks) == len(returns)
    if experiment.environment.id == "Pendulum-v1":
        assert len(returns) == sum(sizes) // 200  # of 200 steps each, and truncated


def test_a_browser_draws_actions_as_often_as_they_are_probable(node: Node) -> None:
    experiment = acting("Acrobot-v1")
    model = Model(experiment, make_environment(experiment.environment))
    model.numbers[:] = 0.0
    model.network.parts["policy.4.bias"][:] = np.log([0.5, 0.3, 0.2])
    body = """
    const actor = new Actor(data.experiment, seeded(5));
    actor.take(Float32Array.from(data.weights));
    return [...actor.collect(6000).rows];
    """
    raw = node(body, experiment=experiment.to_dict(), weights=model.numbers.tolist())
    columns = columns_of(model)
    rows = np.array(raw).reshape(-1, columns.count)
    rows = rows[rows[:, columns.following] > 0]
    shares = np.bincount(rows[:, columns.observation].astype(int)) / len(rows)
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.2], atol=0.03)


@pytest.mark.parametrize(
    ("experiment", "words"),
    [
        (acting("LunarLander-v3"), "only approximated"),
        (acting("Pendulum-v1", **{"network.sde_steps": 16}), "gSDE"),
        (acting("CartPole-v1", **{"parent.rule": "blend"}), "takes no experience"),
        (
            acting("CartPole-v1", **{"environment.wrappers": [{"name": "TimeAwareObservation"}]}),
            "not",
        ),
    ],
)
def test_what_a_browser_cannot_do_it_says(node: Node, experiment: Experiment, words: str) -> None:
    body = "return problem(data.experiment);"
    assert words in node(body, experiment=experiment.to_dict())


# Admission.


def browsers(tokens: Path | None = None) -> Experiment:
    settings: dict[str, Any] = {"parent.browsers": True}
    if tokens is not None:
        tokens.write_text(f"phone {TOKEN}\n")
        tokens.chmod(0o600)
        settings["parent.tokens_file"] = str(tokens)
    return Experiment.load(ROOT / "examples/cartpole/cartpole.toml").with_settings(settings)


async def admitted(parent: Parent, origin: str, *offers: str, **more: str) -> Any:
    host, port = parent.address
    headers = {"Origin": origin, **more}
    return await connect(f"ws://{host}:{port}/", additional_headers=headers, subprotocols=offers)


async def upgraded(parent: Parent, **headers: str) -> str:
    """The status of the answer to an upgrade, by hand."""
    reader, writer = await asyncio.open_connection(*parent.address)
    fields = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Protocol": "genkidama",
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    writer.write(f"GET / HTTP/1.1\r\n{head}\r\n".encode())
    status = (await reader.readline()).split()[1].decode()
    writer.close()
    return status


@pytest.fixture
def _no_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is admitted does not hang on the process that learns."""
    monkeypatch.setattr(learner_process, "companion", lambda _: None)


@pytest.mark.usefixtures("_no_learner")
@pytest.mark.parametrize("on", [True, False])
async def test_browsers_are_admitted_only_if_the_parent_says_so(tmp_path: Path, on: bool) -> None:
    experiment = browsers() if on else constant()
    async with running(experiment, tmp_path / "run") as parent:
        own = "http://%s:%d" % parent.address  # noqa: UP031
        for path in ("join", "static/join.js", "static/page.css"):
            assert (await fetch(f"{own}/{path}"))[0] == (200 if on or path != "join" else 426)
        if on:
            async with await admitted(parent, own, "genkidama") as socket:
                assert socket.subprotocol == "genkidama"
        else:
            with pytest.raises(InvalidStatus, match="403"):
                await admitted(parent, own, "genkidama")
        for foreign in ("http://evil.example", "http://127.0.0.1:1", "null"):
            with pytest.raises(InvalidStatus, match="403"):
                await admitted(parent, foreign, "genkidama")
        for name, status in (("evil.example", "403"), ("localhost", "101" if on else "403")):
            host = f"{name}:{parent.address[1]}"  # a foreign name that points here, and our own
            assert await upgraded(parent, Host=host, Origin=f"http://{host}") == status


@pytest.mark.usefixtures("_no_learner")
async def test_with_tokens_a_browser_shows_its_own(tmp_path: Path) -> None:
    async with running(browsers(tmp_path / "tokens"), tmp_path / "run") as parent:
        own = "http://%s:%d" % parent.address  # noqa: UP031
        assert (await fetch(f"{own}/join"))[0] == (await fetch(f"{own}/static/join.js"))[0] == 200
        assert (await fetch(f"{own}/static/main.js"))[0] == 401  # that is for viewers
        for offers in (("genkidama",), ("genkidama", "token.wrong-token-of-nobody")):
            with pytest.raises(InvalidStatus, match="401"):
                await admitted(parent, own, *offers)
        with pytest.raises(InvalidStatus, match="401"):
            await admitted(parent, own, "genkidama", **bearer(TOKEN))
        async with await admitted(parent, own, "genkidama", f"token.{TOKEN}") as socket:
            child = FakeChild(parent.address, "somebody-else")
            child.connection = socket
            assert "this token is for 'phone'" in str(await child.hello())


def test_browsers_need_a_rule_that_takes_experience() -> None:
    with pytest.raises(ConfigurationError, match=r"parent.browsers = True.*'experience'"):
        constant(parent={"browsers": True})


# In a browser.

#: A page that nobody sees until it says so.
UNSEEN = "Object.defineProperty(document, 'hidden', {get: () => !window.seen})"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_eight_browsers_solve_cartpole_by_themselves(
    start: Callable[..., Started], tmp_path: Path, look: Look
) -> None:
    experiment = Experiment.load(ROOT / "examples/cartpole/cartpole.toml").with_settings(
        {"parent.browsers": True, "stop.mean_return": 450, "stop.steps": 1_000_000}
    )
    port = a_parent(start, tmp_path, experiment)
    with look(f"http://127.0.0.1:{port}/join", lost=True) as first:
        first.wait_for_selector("#state >> text=acts", timeout=LONG)
        assert not violations(first)
        picture(first, "browser-child")
        first.click("#pause")
        first.wait_for_selector("#state >> text=paused by you")
        others = []
        for _ in range(7):
            others.append(first.context.browser.new_context().new_page())
            others[-1].add_init_script(UNSEEN)
            others[-1].goto(f"http://127.0.0.1:{port}/join")
            others[-1].wait_for_selector("#state >> text=rests while this page is not seen")
        first.click("#pause")
        for other in others:
            other.evaluate("() => { window.seen = true; }")
        until(lambda: history(tmp_path / "shelf", "stop"), "the goal", 300)
        first.wait_for_selector("#state >> text=over: mean return", timeout=LONG)
        assert int(facts(first, "done")["exchanges"].replace(",", "")) > 0
        for other in others:
            other.context.close()
    joined = {line["child"] for line in history(tmp_path / "shelf", "join")}
    acted = {line["child"] for line in history(tmp_path / "shelf", "exchange")}
    assert (
        acted == joined and len(joined) == 8 and all(name.startswith("browser-") for name in joined)
    )
    evaluation = evaluate(tmp_path / "shelf", episodes=10)
    assert evaluation.mean > 300  # in Gymnasium


@pytest.mark.slow
def test_an_excluded_browser_is_told_and_ends(
    start: Callable[..., Started], tmp_path: Path, look: Look
) -> None:
    experiment = Experiment.load(ROOT / "examples/cartpole/cartpole.toml").with_settings(
        {"parent.browsers": True, "stop.mean_return": 10_000, "stop.steps": 100_000_000}
    )
    port = a_parent(start, tmp_path, experiment)
    with look(f"http://127.0.0.1:{port}/join#phone", lost=True) as page:
        page.wait_for_selector("#state >> text=acts", timeout=LONG)
        address = (tmp_path / "shelf/owner").read_text().splitlines()[0]
        done = start("genkidama", "top", address, "--command", "exclude=phone")
        assert done.wait(60) == 0, done.err
        page.wait_for_selector("#state >> text=over: the run's owner has excluded", timeout=LONG)


@pytest.mark.slow
def test_a_browser_returns_to_a_parent_that_starts_again(
    start: Callable[..., Started], tmp_path: Path, look: Look
) -> None:
    experiment = Experiment.load(ROOT / "examples/cartpole/cartpole.toml").with_settings(
        {
            "parent.browsers": True,
            "parent.checkpoint_seconds": 1,
            "stop.mean_return": 10_000,
            "stop.steps": 100_000_000,
        }
    )
    (tmp_path / "cart.toml").write_text(experiment.to_toml())
    port = free_port()
    options = ["--listen", f"127.0.0.1:{port}", "--out", "shelf"]
    shelf = tmp_path / "shelf"
    parents = [start("genkidama.parent", "cart.toml", *options)]
    until(lambda: (shelf / "owner").exists())
    with look(f"http://127.0.0.1:{port}/join#phone", lost=True) as page:
        until(lambda: history(shelf, "checkpoint"), "a checkpoint", 60)
        parents[0].signal(signal.SIGKILL)
        page.wait_for_selector("#state >> text=trying again", timeout=LONG)
        parents = [start("genkidama.parent", "cart.toml", *options)]
        until(lambda: history(shelf, "resume"), "another parent", 60)
        before = len(history(shelf, "exchange"))
        until(lambda: len(history(shelf, "exchange")) > before + 5, "more exchanges", 60)
        page.wait_for_selector("#state >> text=acts", timeout=LONG)
        # What it has of one run is not pushed into another that has its address.
        for process in parents:
            process.signal(signal.SIGKILL)
        page.wait_for_selector("#state >> text=trying again", timeout=LONG)
        other = experiment.with_settings({"environment.id": "Acrobot-v1"})
        (tmp_path / "other.toml").write_text(other.to_toml())
        start("genkidama.parent", "other.toml", *options[:2], "--out", "other")
        until(lambda: len(history(tmp_path / "other", "exchange")) > 2, "exchanges", 60)
    for folder in (shelf, tmp_path / "other"):
        assert {line["child"] for line in history(folder, "join")} == {"phone"}
        assert not history(folder, "refused")


@pytest.mark.slow
def test_browsers_of_one_link_take_names_of_their_own_and_all_hear_the_end(
    start: Callable[..., Started], tmp_path: Path, look: Look
) -> None:
    experiment = Experiment.load(ROOT / "examples/cartpole/cartpole.toml").with_settings(
        {"parent.browsers": True, "parent.linger_seconds": 1000, "stop.steps": 100_000_000}
    )
    (tmp_path / "cart.toml").write_text(experiment.to_toml())
    port, shelf = free_port(), tmp_path / "shelf"
    options = ["--listen", f"127.0.0.1:{port}", "--out", "shelf"]
    parent = start("genkidama.parent", "cart.toml", *options)
    until(lambda: (shelf / "owner").exists())
    link = f"http://127.0.0.1:{port}/join#*"
    with look(link, lost=True) as resting:
        resting.wait_for_selector("#state >> text=acts", timeout=LONG)
        resting.click("#pause")
        taken = facts(resting, "done")["name"]
        away = resting.context.new_page()
        away.add_init_script(f"sessionStorage.name ??= {taken!r}")
        away.goto(link)
        away.wait_for_selector("#state >> text=acts", timeout=LONG)
        name = facts(away, "done")["name"]
        assert name != taken
        away.goto("about:blank")
        until(lambda: history(shelf, "leave"), "the end of its connection")
        address = (shelf / "owner").read_text().splitlines()[0]
        assert start("genkidama", "top", address, "--command", "stop").wait(60) == 0
        resting.wait_for_selector("#state >> text=over: ", timeout=LONG)
        away.goto(link)
        away.wait_for_selector("#state >> text=over: ", timeout=LONG)
        assert facts(away, "done")["name"] == name
        assert parent.wait(30) == 0  # which has waited for both, and waits no longer
