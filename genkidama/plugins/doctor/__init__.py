"""`genkidama doctor`: examines this machine, changes nothing on it, and says what to do.

It may read the machine, start processes and talk to a parent. It leaves nothing behind: no file, no
process, no child at the parent. A check imports packages beyond the standard library only when it
needs them, so the doctor runs on a machine that lacks some, and names them.

`python -m genkidama.plugins.doctor` is the same command without the rest of `genkidama`.
"""

from __future__ import annotations

from genkidama.config.plugin import Plugin

PLUGIN = Plugin(
    verbs={"doctor": "genkidama.plugins.doctor.verbs:DOCTOR"},
)
