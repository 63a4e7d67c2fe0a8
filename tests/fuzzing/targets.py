"""All targets, by name."""

from __future__ import annotations

from tests.fuzzing import conversations, decoders, doors, files

TARGETS = {**decoders.TARGETS, **conversations.TARGETS, **doors.TARGETS, **files.TARGETS}
