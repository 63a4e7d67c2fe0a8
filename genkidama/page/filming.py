"""Films of new best policies, made by `genkidama play` in a process of low priority.

Laws of this file:
- One film is made at a time, and one a minute at most. The newest ones are kept.
- A film that cannot be made is said once, and none is tried again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "Filming"]

#: Where films lie in a run's directory.
FOLDER = "films"

#: Seconds between the beginnings of two films.
_PAUSE_SECONDS = 60.0

#: So many films are kept.
_MOST = 10


class Filming:
    """Makes a film whenever there is a new best checkpoint.

    Args:
        best: the checkpoint's file, which need not be there yet.
        folder: where films go; made if missing.
        command: makes a film of the checkpoint; its last words are the checkpoint, `--video` and
            the file.
    """

    def __init__(self, best: Path, folder: Path, command: Sequence[str] = ()) -> None:
        self._best = best
        self._folder = folder
        low = ["nice", "-n", "19"] if shutil.which("nice") else []
        ours = [*low, sys.executable, "-m", "genkidama", "play"]
        self._command = list(command) or ours
        #: By name, the files of the newest films.
        self.films: dict[str, Path] = {}
        #: What the document says of them.
        self.rows: list[dict[str, Any]] = []
        #: Why no films are made; empty while they are.
        self.problem = ""
        self._seen = 0
        self._next = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._making: tuple[Path, float, float | None] | None = None

    def look(self, now: float, mean_return: float | None) -> None:
        """Begins a film if there is something new, and takes in one that is done.

        To be called often; it waits for nothing.

        Args:
            now: Unix seconds.
            mean_return: of the newest policy.
        """
        if self._process is not None:
            self._take_in()
        elif not self.problem and time.monotonic() >= self._next:
            self._begin(now, mean_return)

    def close(self) -> None:
        """Ends a film that is being made."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _begin(self, now: float, mean_return: float | None) -> None:
        try:
            written = self._best.stat().st_mtime_ns
            if written == self._seen:
                return
            self._seen = written
            self._folder.mkdir(exist_ok=True)
            # What plays must not see the next best one come in its place.
            copy = self._folder / ".playing.safetensors"
            shutil.copyfile(self._best, copy)
            film = self._folder / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}.mp4"
            self._next = time.monotonic() + _PAUSE_SECONDS
            self._making = (film, now, mean_return)
            self._process = subprocess.Popen(
                [*self._command, str(copy), "--video", str(film)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        except FileNotFoundError:
            return  # there is no best policy yet
        except OSError as error:
            self.problem = f"no film: {error}"

    def _take_in(self) -> None:
        assert self._process is not None
        assert self._making is not None
        code = self._process.poll()
        if code is None:
            return
        process, self._process = self._process, None
        film, moment, mean_return = self._making
        with process:
            said = (process.stderr.read() if process.stderr else b"").decode(errors="replace")
        if code or not film.is_file():
            last = (said.strip().splitlines() or [f"code {code}"])[-1]
            self.problem = f"no film: {last}"
            return
        self.films[film.name] = film
        row = {"url": f"/films/{film.name}", "time": moment, "mean_return": mean_return}
        self.rows = [*self.rows, row][-_MOST:]
        for name in list(self.films)[:-_MOST]:
            self.films.pop(name).unlink(missing_ok=True)
