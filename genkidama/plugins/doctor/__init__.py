"""`genkidama doctor`: examines this machine, changes nothing on it, and says what to do.

It may read the machine, start processes of its own and talk to a parent. It leaves nothing behind:
no file, no process, no child at the parent. Nothing here imports more than the standard library
before a check needs it, so the doctor runs on a machine that lacks something, and says what it
lacks. `python -m genkidama.plugins.doctor` is the same command without the rest of `genkidama`.
"""

from __future__ import annotations

from genkidama.config.plugin import Plugin

__all__ = ["PLUGIN"]

PLUGIN = Plugin(
    verbs={"doctor": "genkidama.plugins.doctor.verbs:DOCTOR"},
)
