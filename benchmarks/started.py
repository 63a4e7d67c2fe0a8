"""Programs that are started in a folder, and watched with all that they start."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.processes import PATIENCE, ROOT, until

#: Started processes and all that they start carry this word in their environment.
_MARK = "GENKIDAMA_TEST_MARK"


class Started:
    """A process of ours, started with `python -m`, and everything that it starts.

    Standard output and error go to files, so that nobody has to read them. `starting` ends what is
    left at the end of a test.
    """

    def __init__(self, folder: Path, arguments: tuple[str, ...]) -> None:
        self.mark = uuid.uuid4().hex
        self._out, self._err = (folder / f"{self.mark}.{name}" for name in ("out", "err"))
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, "PYTHONPATH": str(ROOT), _MARK: self.mark},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def family(self) -> list[psutil.Process]:
        """All living processes with the mark: this one and what it started, in any session."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if (
                    process.status() != psutil.STATUS_ZOMBIE
                    and process.environ().get(_MARK) == self.mark
                ):
                    found.append(process)
        return found

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        return self.popen.wait(seconds)

    def vanish(self, seconds: float) -> None:
        """Waits until the process and all that it started are gone."""
        left: list[psutil.Process] = []

        def gone() -> bool:
            left[:] = self.family()
            return self.popen.poll() is not None and not left

        try:
            until(gone, "all gone", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}, but {[member.cmdline() for member in left]}") from None

    def end(self) -> None:
        for process in self.family():
            with suppress(psutil.Error):
                process.kill()
        self.popen.wait()
