"""The number of core processes that fit into the free memory. Pure: others measure.

Before a child starts any core, it measures the memory of one, on its machine and with its
experiment. Until then it uses the figures here. They are LunarLander's with two layers of 64 on
x86-64, without tensors and with those of torch 2.13. A core of an environment with images takes
about three times as much.
"""

from __future__ import annotations

from genkidama.config.formatting import megabytes

#: Bytes that a child takes before its first core: 33 MB are its own process, the rest the
#: forkserver. Pages of files are left out: the kernel can have them back.
CHILD_BYTES = 50_000_000

#: Bytes that torch adds in the forkserver, where the experiment needs tensors.
TENSOR_BYTES = 140_000_000

#: Bytes that a core takes and does not share.
CORE_BYTES = 15_000_000

#: A core that has grown by this asks to be replaced. Environments leak: Box2D keeps 1.6 KiB of
#: every LunarLander episode, which is gigabytes a day. All that was learned is in the shared
#: memory, and a fork takes milliseconds, so a replacement costs one unfinished
#: episode. Each core gets all of this room: cores start together, leak alike, and come to the limit
#: together. (Four of them were at 14.4, 14.4, 14.5 and 14.6 MiB after a minute.)
GROWTH_BYTES = 24 << 20

#: In its first seconds a core may grow by this: libraries and environments fill their caches.
SETTLING_BYTES = 8 * GROWTH_BYTES

#: A process is never allowed less than this beside what it began with.
_LEAST_ALLOWED = 256 << 20

#: Bytes that stay free. The kernel counts pages of files as available. But a child learns nothing
#: if its libraries are read from an SD card again and again, and its cores use about 45 MB of them.
#: The rest is for the machine's other work.
RESERVE_BYTES = 64 << 20


def cores_that_fit(available: int | None, per_core: int, at_most: int, reserve: int = 0) -> int:
    """The number of cores to run, 1 to `at_most`, in bytes that are free but for a reserve.

    The bytes may be less than 0; None if the system does not say.
    """
    if available is None:
        return at_most
    return max(1, min(at_most, (available - reserve) // per_core))


def child_bytes(tensors: bool) -> int:
    """Bytes that a child takes before its first core, with tensors or without."""
    return CHILD_BYTES + TENSOR_BYTES * tensors


def expected_cores(available: int | None, at_most: int, tensors: bool = False) -> int:
    """`cores_that_fit` for a child that has not measured anything yet."""
    reserve = child_bytes(tensors) + RESERVE_BYTES
    return cores_that_fit(available, CORE_BYTES + GROWTH_BYTES, at_most, reserve)


def allowance(available: int | None, among: int) -> int | None:
    """Further bytes that a process may take before the kernel gives it none.

    That is twice its share of the free memory, and at most half of that. So a process that eats
    memory at once, before it can notice that it leaks, does not take that of others. There is no
    limit where the system does not say what is free.
    """
    if available is None:
        return None
    return max(_LEAST_ALLOWED, min(available // 2, 2 * available // among))


def replay_refusal(
    available: int | None, shape: tuple[int, int, int], size: int, steps: int, batch: int = 0
) -> str:
    """The reason not to make a replay tensor, C × N × M; empty if there is room for it.

    `size` has the bytes of the tensor and of what is kept beside it. Where `steps` is 0, the tensor
    holds one batch. A small one is never refused.
    """
    small = not steps and size <= RESERVE_BYTES
    if available is None or size + RESERVE_BYTES <= available or small:
        return ""
    cores, rows, columns = shape
    setting = "replay.steps" if steps else "algorithm.batch_size"
    steps = steps or batch
    room = max(0, available - RESERVE_BYTES)
    return (
        f"{setting} = {steps}: the replay tensor of {cores} × {rows} × {columns} numbers takes "
        f"{megabytes(size)}, {megabytes(room)} are free; at most {steps * room // size} steps fit"
    )
