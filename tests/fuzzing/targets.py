"""All targets, by name."""

from __future__ import annotations

from tests.fuzzing import conversations, decoders, files

TARGETS = {**decoders.TARGETS, **conversations.TARGETS, **files.TARGETS}
