"""`genkidama doctor`: whether this machine can do its part, and what to do where it cannot.

    judgements   what to think of what was found (pure)
    host         the machine: Python, system, cores, memory, disk, clock
    software     packages, torch, Box2D, uvloop; what may kill a process is tried in one of its own
    parent       the way to a parent: name, port, TLS, version, clock, token
    holder       a machine that is to be the parent: directory, certificate, tokens
    command      the command: in which order, on which terminal

Nothing here needs more than the standard library until it is asked about it, so that a machine that lacks something, or on
which something cannot be imported, is told what. `python -m genkidama.doctor` is the same command without the rest of `genkidama`.
"""
