"""A child, the parent that it talks to, and what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from genkidama.child.child import Child
from genkidama.config.experiment import Experiment
from genkidama.parent import Parent
from genkidama.protocol.messages import (
    PROTOCOL,
    Goodbye,
    Hello,
    Leave,
    Push,
    Request,
    Weights,
    Welcome,
)
from genkidama.protocol.vector import DTYPE
from tests.helpers import Answer, FakeParent, constant, url

TOKEN, OTHER = "token-of-the-pi-01", "token-of-the-pi-02"


def child_of(parent: Parent, name: str = "pi", **options: Any) -> Child:
    return Child(url(parent.address), name=name, **options)


class Scripted(FakeParent):
    """A parent that follows the rules, but gives these answers to the first messages of a kind."""

    def __init__(
        self, experiment: Experiment | None = None, **answers: Answer | list[Answer]
    ) -> None:
        super().__init__(self._next)
        self.experiment = experiment or constant()
        self._answers = {
            kind: list(given) if isinstance(given, list) else [given]
            for kind, given in answers.items()
        }

    def _next(self, request: Request) -> Answer:
        given = self._answers.get(type(request).__name__.lower())
        if given:
            return given.pop(0)
        match request:
            case Hello():
                return Welcome(protocol=PROTOCOL, experiment=self.experiment.to_dict())
            case Leave():
                return Goodbye()
            case Push():
                return Weights(version=request.version + 1, vector=request.vector)
        return Weights(version=0, vector=np.zeros(4, DTYPE))

    def of(self, kind: type[Any]) -> Callable[[], list[Any]]:
        return lambda: [request for request in self.requests if isinstance(request, kind)]


class Said:
    """The log lines of an event, in their order, as they are written."""

    def __init__(self, capsys: pytest.CaptureFixture[str], event: str) -> None:
        self._capsys, self._event = capsys, event
        self._lines: list[dict[str, Any]] = []

    def reasons(self) -> list[str]:
        found = [json.loads(line) for line in self._capsys.readouterr().err.splitlines()]
        self._lines += [line for line in found if line["event"] == self._event]
        return [line.get("reason", "") for line in self._lines]
