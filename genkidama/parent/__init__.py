"""The parent's role: waits for sockets, clocks, signals and disks, and decides nothing.

`genkidama.server.parameter_server` makes the decisions. A parent needs neither torch nor an
environment.

`python -m genkidama.parent FILE.toml` runs one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from genkidama.parent.parent import Parent as Parent


def __getattr__(name: str) -> Any:
    # `python -m genkidama.parent` handles Ctrl-C before it imports anything else.
    if name == "Parent":
        from genkidama.parent.parent import Parent

        return Parent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
