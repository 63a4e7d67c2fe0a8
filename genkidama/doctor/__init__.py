"""`genkidama doctor`: examines this machine, changes nothing on it, and says what to do.

It may read the machine, start processes of its own and talk to a parent. It leaves nothing behind:
no file, no process, no child at the parent.

    judgements/      what to think of what was found (pure)
    host             the machine: Python, system, cores, memory, disk, clock
    software         packages, torch, Box2D, uvloop; what may kill a process runs in one of its own
    connection       the way to a parent: name, port, TLS, version, clock, token
    parent_machine   a machine that is to be the parent: directory, certificate, tokens
    arguments        what may be typed
    command          the command: which checks, in which order, and how a terminal shows them

Nothing here imports more than the standard library before a check needs it. So the doctor runs on
a machine that lacks something, and says what it lacks. `python -m genkidama.doctor` is the same
command without the rest of `genkidama`.
"""
