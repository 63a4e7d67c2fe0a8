"""The parent's role: here it waits for sockets, clocks, signals and disks, and decides nothing.

Its decisions are made in `genkidama.server.parameter_server`. It needs neither torch nor an
environment.

`python -m genkidama.parent FILE.toml` runs one.
"""

from genkidama.parent.parent import Parent

__all__ = ["Parent"]
