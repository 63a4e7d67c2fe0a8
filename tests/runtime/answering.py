"""The other process of a shared memory, in a module that is quick to import."""

from __future__ import annotations

from multiprocessing.connection import Connection

from genkidama.child.shared_memory import SharedMemory


def answer(memory: SharedMemory, line: Connection) -> None:
    """Sends what it sees, writes, and goes on until it is told to end."""
    with line:
        line.send((memory.layout, memory.weights.tolist(), memory.replay[2, 4].tolist()))
        memory.gradients[1] = 6.0
        memory.semaphore[2] = True
        memory.head[0] = 2**40
        line.send("written")
        line.recv()
        line.send(memory.weights.tolist())
        memory.close()
        line.recv()
