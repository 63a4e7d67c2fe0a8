"""Films of a run's newest weights, which a process beside the parent makes when its owner asks."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from genkidama.config.allowlist import modules
from genkidama.config.experiment import Experiment
from genkidama.errors import GenkidamaError
from genkidama.runs.checkpoint import CheckpointFolder
from genkidama.runs.sharded_checkpoint import CHECKPOINTS
from genkidama.server.events import Event, Filmed, Warned
from genkidama.server.parameter_server import ParameterServer

#: The folder in a run's directory; `version-N.mp4` plays version N.
FILMS = "films"

#: Seconds for the checkpoint before it, between two looks at it, and for the film.
_CHECKPOINT_SECONDS, _LOOK_SECONDS = 30.0, 0.1
_SECONDS = 600.0


def newest_film(out: Path) -> Path | None:
    """The film of the newest version in this run's directory; None if there is none."""
    return max((out / FILMS).glob("version-*.mp4"), default=None)


async def make_film(server: ParameterServer, out: Path, now: Callable[[], float]) -> None:
    """Makes a film of the checkpoint that the server was asked for, one at a time, at a low
    priority; an event says what came of it. `now` is the parent's clock."""
    film = None
    try:
        async with asyncio.timeout(_CHECKPOINT_SECONDS):
            while "checkpoint" in server.asked:
                await asyncio.sleep(_LOOK_SECONDS)
        film, problem = await _play(server.experiment, out)
    except TimeoutError:
        problem = "it takes too long"
    except (OSError, GenkidamaError) as error:
        problem = str(error)
    finally:
        server.asked.discard("film")
    if film is None:
        event: Event = Warned(time=now(), reason=f"no film was made: {problem}")
    else:
        version = int(film.stem.rpartition("-")[2])
        event = Filmed(time=now(), version=version, file=film.name)
    server.trials.events.append(event)


async def _play(experiment: Experiment, out: Path) -> tuple[Path | None, str]:
    folder = CheckpointFolder(out / CHECKPOINTS)
    if not (versions := folder.versions()):
        return None, f"{folder.path}: there is no checkpoint"
    path = folder.version_path(versions[-1])
    film = out / FILMS / f"{path.stem}.mp4"
    film.parent.mkdir(exist_ok=True)
    unfinished = film.with_name(f"unfinished-{film.name}")
    command = [*filter(None, (shutil.which("nice"),)), sys.executable, "-m", "genkidama", "play"]
    command += [str(path), "--video", str(unfinished)]
    for module in modules(experiment.to_dict()):
        command += ["--allow", module]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_SECONDS):
            said = (await process.communicate())[1].decode(errors="replace").strip()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        if process.returncode == 0:
            unfinished.replace(film)
        unfinished.unlink(missing_ok=True)
    problem = (said.splitlines() or ["it said nothing"])[-1]
    return (film, "") if process.returncode == 0 else (None, problem)
