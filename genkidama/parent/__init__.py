"""The parent's role: holds the weights and serves the children. Needs no torch.

    server.py        Parent: its life in verbs
    connections.py   who speaks on which connection
    channel.py       one connection, with a short way for pushes
    records.py       the run's directory
    checkpointer.py  when θ_P is written to the disk
    history.py       history.jsonl
    telemetry.py     the log
    address.py       HOST:PORT and fd://N

`python -m genkidama.parent FILE.toml` runs one.
"""

from genkidama.parent.server import Parent

__all__ = ["Parent"]
