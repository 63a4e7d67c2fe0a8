"""Shared memories of a child, as small as a test needs them."""

from __future__ import annotations

from genkidama.child.shared_memory import Layout, SharedArray, SharedMemory, core_arrays


def shared_memory(
    cores: int = 1,
    rows: int = 1,
    columns: int = 1,
    more: dict[str, SharedArray] | None = None,
    *,
    size: int = 1,
    trainable: int = 1,
) -> SharedMemory:
    """With the arrays of optional parts, `more`, beside those of every core."""
    arrays = core_arrays(rows=rows, columns=columns, size=size, trainable=trainable)
    return SharedMemory(Layout(arrays | (more or {}), cores))
