"""A run directory: what a run leaves behind, and how to read it.

experiment.toml    the settings as they were used
checkpoints/       version-NNNNNNNNNN.safetensors (the last few) and best.safetensors
trials/NNNN/       of a search: each trial, as a run of its own
study.db           of a search: the Optuna study, unless it is kept elsewhere
history.jsonl      one JSON object a line: what happened, and when
evaluation.json    the last evaluation
logs/, children/   what the processes said, and the children's own state (runs on one machine)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.experiment import Experiment
from genkidama.system import checkpoint as checkpoints
from genkidama.system.checkpoint import Checkpoint, write_atomically

__all__ = ["Run"]


@dataclass(frozen=True)
class Run:
    """A run directory, running or ended.

    Args:
        path: the directory.
    """

    path: Path

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """An existing run.

        Raises:
            ConfigurationError: there is no run in that directory.
        """
        run = cls(Path(path))
        if not (run.path / "experiment.toml").is_file():
            raise ConfigurationError(f"{path}: holds no run (no experiment.toml)")
        return run

    @property
    def experiment(self) -> Experiment:
        """The settings as they were used."""
        return Experiment.load(self.path / "experiment.toml")

    @property
    def checkpoints(self) -> list[Path]:
        """The versions kept, oldest first, without the best."""
        return sorted((self.path / "checkpoints").glob("version-*.safetensors"))

    @property
    def trials(self) -> list[Run]:
        """Of a search: its trials that have weights, by number."""
        return [Run(path) for path in sorted((self.path / "trials").glob("[0-9]*"))]

    @property
    def best(self) -> Path | None:
        """The checkpoint with the best mean training return, if a whole window of episodes was ever seen."""
        path = self.path / "checkpoints" / "best.safetensors"
        return path if path.is_file() else None

    @property
    def final(self) -> Path:
        """The newest checkpoint.

        Raises:
            ConfigurationError: there is none yet.
        """
        found = self.checkpoints
        if not found:
            raise ConfigurationError(
                f"{self.path}: holds no checkpoint yet; train longer, or lower parent.checkpoint_seconds"
            )
        return found[-1]

    def load(self) -> Checkpoint:
        """The newest checkpoint's weights and counters."""
        return checkpoints.load(self.final)

    def history(self) -> Iterator[dict[str, Any]]:
        """The lines of `history.jsonl`, oldest first. A last line that is still being written is left out."""
        try:
            with (self.path / "history.jsonl").open("rb") as file:
                for line in file:
                    if line.endswith(b"\n"):
                        yield msgspec.json.decode(line)
        except FileNotFoundError:
            return

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """The last evaluation as it was written, None if there was none."""
        try:
            found: dict[str, Any] = msgspec.json.decode(
                (self.path / "evaluation.json").read_bytes()
            )
        except FileNotFoundError:
            return None
        return found

    def record_evaluation(self, evaluation: dict[str, Any], now: float) -> None:
        """Writes `evaluation.json` and a line of history.

        Raises:
            EnvironmentFailure: they cannot be written.
        """
        write_atomically(
            self.path / "evaluation.json",
            msgspec.json.format(msgspec.json.encode(evaluation)) + b"\n",
        )
        line = {
            "time": now,
            "event": "evaluation",
            **{key: value for key, value in evaluation.items() if key != "returns"},
        }
        line["mean_return"] = evaluation["mean"]
        try:
            with (self.path / "history.jsonl").open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            raise EnvironmentFailure(
                f"{self.path}/history.jsonl: cannot be written: {error.strerror}"
            ) from None
