"""What stands between us and an engine, each in a line with a way out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from genkidama.config.formatting import without_password
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.plugins.gorila.redis_client import PASSWORD, EngineGone, RedisClient
from tests.engines import RealEngine, running, saying
from tests.helpers import free_port


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    with running(tmp_path_factory.mktemp("engine"), "--appendonly", "yes") as engine:
        yield engine


def test_one_that_keeps_none_is_warned_of(tmp_path: Path) -> None:
    with running(tmp_path) as engine:
        found = RedisClient(engine.url)
        assert found.check() == (
            "the engine forgets its replay when it ends; start it with appendonly yes "
            "(CONFIG SET appendonly yes)"
        )
        with engine.client() as client:
            client.config_set("maxmemory", 10**8)
            client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(ConfigurationError, match=r"'allkeys-lru' may throw the replay away"):
            found.check()
        found.close()


def test_an_engine_that_is_not_there_is_told_how_to_start() -> None:
    port = free_port()
    with pytest.raises(EngineGone) as caught:
        RedisClient(f"redis://127.0.0.1:{port}").check()
    assert str(caught.value) == (
        f"replay.url = 'redis://127.0.0.1:{port}': no engine answers there: Error 111 connecting "
        f"to 127.0.0.1:{port}. Connection refused; start one with "
        f"`valkey-server --port {port} --appendonly yes --appendfsync no`, "
        "or set replay.url to 'embedded'"
    )


@pytest.mark.parametrize("given", ["wrong", ""])
def test_a_wrong_password_is_said_and_none_is_shown(engine: RealEngine, given: str) -> None:
    url = f"redis://{given and f':{given}@'}127.0.0.1:{engine.port}"
    with pytest.raises(ConfigurationError) as caught:
        RedisClient(url).check()
    assert str(caught.value).startswith(f"replay.url = {without_password(url)!r}: the engine ")
    assert str(caught.value).endswith(
        "give it as redis://:PASSWORD@HOST:PORT, or in the environment as GENKIDAMA_REPLAY_PASSWORD"
    )
    assert "wrong" not in str(caught.value).lower().replace("wrongpass", "")
    assert "\n" not in str(caught.value)


def test_the_environments_password_is_for_a_url_without_one(
    engine: RealEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, engine.password)
    found = RedisClient(f"redis://127.0.0.1:{engine.port}")
    assert found.check() == ""
    found.close()


def test_an_engine_that_is_too_old_is_named_with_what_is_needed() -> None:
    with saying("redis_version:6.0.20\r\n") as url:
        found = RedisClient(url)
        with pytest.raises(ConfigurationError) as caught:
            found.check()
        found.close()
    assert str(caught.value) == (
        f"replay.url = {url!r}: Redis 6.0.20 is too old; Valkey, or Redis 6.2 or later is needed"
    )


@pytest.mark.parametrize("code", ["MISCONF", "READONLY"])
def test_an_engine_that_takes_no_writes_is_waited_for_also_if_its_script_says_so(code: str) -> None:
    """As Redis 6.2.14 says it."""
    error = f"-ERR Error running script (call to f_ee5b): @user_script:1: @user_script: 1: -{code}"
    with (
        saying("", f"{error} You can't write") as url,
        closing(RedisClient(url)) as found,
        pytest.raises(EngineGone, match=code),
    ):
        found.ask(lambda client: client.evalsha("ee5b", 0))


def test_an_engine_whose_memory_is_full_is_said_to_be(tmp_path: Path) -> None:
    with running(tmp_path, "--maxmemory", "2mb") as engine:
        found = RedisClient(engine.url)

        def fill(client: Any) -> None:
            for number in range(100):
                client.set(str(number), bytes(100_000))

        with pytest.raises(EnvironmentFailure, match=r"the engine's memory is full; raise its max"):
            found.ask(fill)
        found.close()


def test_a_user_who_may_not_do_it_is_told_what_to_allow(engine: RealEngine) -> None:
    with engine.client() as client:
        client.execute_command("ACL", "SETUSER", "shy", "on", ">word", "+info", "+ping")
    found = RedisClient(f"redis://shy:word@127.0.0.1:{engine.port}")
    with pytest.raises(ConfigurationError, match=r"allow it keys genkidama:\* and scripting$"):
        found.ask(lambda client: client.get("genkidama:x"))
    found.close()


def test_without_a_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkey", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'genkidama-rl\[replay\]'$"):
        RedisClient("redis://far")
