"""The version of the package and the name of its distribution: the one place for each."""

from __future__ import annotations

__version__ = "0.1.0"

#: What pip calls it. On the package index, `genkidama` is somebody else's library.
DISTRIBUTION = "genkidama-rl"


def pip_install(extra: str) -> str:
    """The command that installs one of Genkidama's extras."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
