"""Parts of multiprocessing without documentation that `genkidama/runtime/forkserver.py` relies on.

It needs nothing but Python's own library, so any Python can run it: `python3.14 FILE` prints what
that Python lacks.
"""

from __future__ import annotations

import sys
import types
from multiprocessing import connection, forkserver, popen_forkserver, resource_tracker, spawn

__all__ = ["missing"]


def missing() -> list[str]:
    """A sentence for each part that this Python does not have any more."""
    server = forkserver.ForkServer()
    launch = popen_forkserver.Popen._launch.__code__.co_names  # type: ignore[attr-defined]
    parts = {
        "ForkServer() has a method set_forkserver_preload(modules)": hasattr(
            server, "set_forkserver_preload"
        ),
        "ForkServer() has a method connect_to_new_process(fds)": hasattr(
            server, "connect_to_new_process"
        ),
        "ForkServer() keeps its process number in _forkserver_pid": hasattr(
            server, "_forkserver_pid"
        ),
        "ForkServer() keeps where it listens, and its lifeline, in attributes of these names": (
            hasattr(server, "_forkserver_address") and hasattr(server, "_forkserver_alive_fd")
        ),
        "ForkServer().connect_to_new_process asks ensure_running() and connects to the address": {
            "ensure_running",
            "_forkserver_address",
            "_forkserver_alive_fd",
        }
        <= set(server.connect_to_new_process.__code__.co_names),
        "forkserver.main(listener, alive, preload) needs nothing else": (
            forkserver.main.__code__.co_varnames[:3] == ("listener_fd", "alive_r", "preload")
            and not (forkserver.main.__kwdefaults__ or {}).get("authkey_r")
        ),
        "Popen._launch keeps the other end of what a process has as its parent's sentinel": {
            "dup",
            "Finalize",
        }
        <= set(launch),
        "util has a function get_temp_dir, and sockets of forkservers lie there": (
            "get_temp_dir" in connection.arbitrary_address.__code__.co_names
        ),
        "forkserver has a function connect_to_new_process": hasattr(
            forkserver, "connect_to_new_process"
        ),
        "Popen._launch looks up forkserver.connect_to_new_process each time": (
            getattr(popen_forkserver, "forkserver", None) is forkserver
            and {"forkserver", "connect_to_new_process"} <= set(launch)
        ),
        "resource_tracker has a function ensure_running": hasattr(
            resource_tracker, "ensure_running"
        ),
        "resource_tracker._resource_tracker keeps its descriptor in _fd": hasattr(
            getattr(resource_tracker, "_resource_tracker", None), "_fd"
        ),
        "an empty module __main__ has no process import the main script": not _main_is_imported(),
    }
    return [part for part, there in parts.items() if not there]


def _main_is_imported() -> bool:
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        told = spawn.get_preparation_data("any name")
    finally:
        sys.modules["__main__"] = main
    return any(key.startswith("init_main") for key in told)


if __name__ == "__main__":
    print("\n".join(missing()))
