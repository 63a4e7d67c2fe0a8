"""Connection to the Valkey or Redis that keeps the replay of all children, and its requirements.

Importing this module imports no client. `RedisClient` does, and names the package to install if
there is none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from genkidama._version import pip_install
from genkidama.config.formatting import megabytes, one_line, without_password
from genkidama.errors import ConfigurationError, EnvironmentFailure

if TYPE_CHECKING:
    from valkey import Valkey

#: The environment variable with an engine's password, for a URL without one.
PASSWORD = "GENKIDAMA_REPLAY_PASSWORD"  # noqa: S105

#: Scripts replicate their effects, and users have names and channels.
_OLDEST = (6, 2)

#: An answer that takes longer will not come. An engine that rewrites its file may take a while.
_SECONDS = 10.0


class EngineGone(Exception):
    """Nobody answers at present; the text says why, in one line, and the way out."""


class RedisClient:
    """An engine, over one connection that is made when it is needed."""

    def __init__(self, url: str) -> None:
        try:
            import valkey
            from valkey.backoff import NoBackoff
            from valkey.retry import Retry
        except ImportError:
            raise ConfigurationError(
                f"replay.url = {without_password(url)!r}: needs a client on this machine: "
                f"{pip_install('replay')}"
            ) from None
        self.url = without_password(url)
        self._errors = valkey.exceptions
        given: dict[str, Any] = {}
        if password := os.environ.get(PASSWORD, ""):
            given["password"] = password
        try:
            # A request that fails is sent again by those that know whether it may be.
            self.client: Valkey = valkey.Valkey.from_url(
                url,
                socket_timeout=_SECONDS,
                socket_connect_timeout=_SECONDS / 2,
                socket_keepalive=True,
                retry=Retry(NoBackoff(), 0),
                **given,
            )
        except ValueError as error:
            raise ConfigurationError(
                f"replay.url = {self.url!r}: is no address of an engine: {one_line(error)}"
            ) from None

    def ask(self, request: Callable[[Valkey], Any]) -> Any:
        """The answer to a request.

        Raises:
            EngineGone: there is none at present. What was asked may have been done.
            ConfigurationError: the engine refuses the password, or this user.
            EnvironmentFailure: it has no memory left.
        """
        errors = self._errors
        try:
            return request(self.client)
        except errors.AuthenticationError as error:
            raise self._refused(error) from None
        except (errors.BusyLoadingError, errors.ReadOnlyError, errors.MasterDownError) as error:
            raise EngineGone(f"replay.url = {self.url!r}: {one_line(error)}") from None
        except (errors.ConnectionError, errors.TimeoutError, OSError) as error:
            raise EngineGone(self._absent(error)) from None
        except errors.NoPermissionError as error:
            raise ConfigurationError(
                f"replay.url = {self.url!r}: the engine's user may not do what is needed: "
                f"{one_line(error)}; allow it keys genkidama:* and scripting"
            ) from None
        except errors.ResponseError as error:
            text = str(error)
            if text.startswith(("NOAUTH", "WRONGPASS")) or "without any password" in text:
                raise self._refused(error) from None
            full = isinstance(error, errors.OutOfMemoryError)
            if full or text.startswith("OOM") or "OOM command" in text:
                raise EnvironmentFailure(
                    f"replay.url = {self.url!r}: the engine's memory is full; raise its maxmemory, "
                    "or set replay.steps lower"
                ) from None
            # Of an error inside a script, Redis before 7.0 tells the code last.
            if "MISCONF" in text or "READONLY" in text:
                raise EngineGone(f"replay.url = {self.url!r}: {one_line(error)}") from None
            raise

    def check(self) -> str:
        """Checks that there is an engine, and that it can keep a replay.

        Returns:
            What is to be warned of; empty if nothing.

        Raises:
            EngineGone, ConfigurationError, EnvironmentFailure: as `ask`; or the engine is too old,
                or set to throw away what it keeps.
        """
        found: dict[str, Any] = self.ask(lambda client: client.info("everything"))
        version = str(found.get("redis_version", "0"))
        if tuple(map(int, re.findall(r"\d+", version)[:2])) < _OLDEST:
            raise ConfigurationError(
                f"replay.url = {self.url!r}: Redis {version} is too old; "
                f"Valkey, or Redis {'.'.join(map(str, _OLDEST))} or later is needed"
            )
        policy = str(found.get("maxmemory_policy", "noeviction"))
        if found.get("maxmemory") and policy.startswith("allkeys"):
            raise ConfigurationError(
                f"replay.url = {self.url!r}: the engine's maxmemory-policy = {policy!r} may throw "
                "the replay away; CONFIG SET maxmemory-policy noeviction"
            )
        if not found.get("aof_enabled"):
            return (
                "the engine forgets its replay when it ends; start it with appendonly yes "
                "(CONFIG SET appendonly yes)"
            )
        return ""

    def check_room(self, size: int) -> None:
        """Checks that a string of this size fits into the engine, which has none of it yet."""
        found: dict[str, Any] = self.ask(lambda client: client.info("memory"))
        most = int(found.get("maxmemory", 0)) or int(found.get("total_system_memory", 0))
        free = max(0, most - int(found.get("used_memory", 0)))
        wanted = f"replay.url = {self.url!r}: replay.steps take {megabytes(size)} there"
        if most and size > free:
            raise EnvironmentFailure(
                f"{wanted}, {megabytes(free)} are free; set replay.steps lower"
                + ("" if not found.get("maxmemory") else ", or raise its maxmemory")
            )
        try:
            found = self.ask(lambda client: client.config_get("proto-max-bulk-len"))
        except (ConfigurationError, self._errors.ResponseError):
            return  # engines for hire tell nobody their settings
        longest = int(found.get("proto-max-bulk-len", size))
        if size > longest:
            raise EnvironmentFailure(
                f"{wanted}, a string of it may have {megabytes(longest)}; set replay.steps lower, "
                f"or CONFIG SET proto-max-bulk-len {size}"
            )

    def close(self) -> None:
        """Ends the connection, if there is one."""
        self.client.close()  # type: ignore[no-untyped-call]

    def _refused(self, error: Exception) -> ConfigurationError:
        return ConfigurationError(
            f"replay.url = {self.url!r}: the engine refuses the password: {one_line(error)}; "
            f"give it as redis://:PASSWORD@HOST:PORT, or in the environment as {PASSWORD}"
        )

    def _absent(self, error: Exception) -> str:
        try:
            port = urlsplit(self.url).port or 6379
        except ValueError:
            port = 6379
        cause = one_line(error, 120).removesuffix(".")
        return (
            f"replay.url = {self.url!r}: no engine answers there: {cause}; start one with "
            f"`valkey-server --port {port} --appendonly yes --appendfsync no`, "
            "or set replay.url to 'embedded'"
        )
