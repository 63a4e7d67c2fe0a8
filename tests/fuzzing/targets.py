"""All targets, by name."""

from __future__ import annotations

from tests.fuzzing import conversations, decoders

TARGETS = {**decoders.TARGETS, **conversations.TARGETS}
