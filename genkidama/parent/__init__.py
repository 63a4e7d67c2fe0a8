"""The parent's role: here it waits for sockets, clocks, signals and disks, and decides nothing.

Its decisions are made in `genkidama.parameter_server`. It needs neither torch nor an environment.

    server.py        Parent: its life in verbs
    admission.py     which connections are let in: tokens and TLS
    connections.py   which child speaks on which connection
    site.py          what is shown of the run, by `genkidama.page`
    channel.py       one connection, with a short way for pushes
    records.py       the run's directory
    checkpointer.py  when θ_P is written to the disk
    trials.py        the same for the trials of a search
    telemetry.py     the log
    learner.py       the process that learns from experience

`python -m genkidama.parent FILE.toml` runs one.
"""

from genkidama.parent.server import Parent

__all__ = ["Parent"]
