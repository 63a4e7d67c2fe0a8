"""The child's role: trains on this machine and exchanges weights with a parent over one websocket.

What may be done here: wait, open sockets, start processes, share memory, and in the core processes
compute. What a message means is decided by `genkidama.session`, what a loss is by
`genkidama.learning`. The process that owns the socket never computes, and imports no torch.

    client.py         Child: its life, trial after trial
    conversation.py   one session with the parent, over one connection after another
    uplink.py         a connection; one request and its one reply
    explanations.py   why there is no connection, with the way out
    credentials.py    the token, and the certificates that are trusted
    state.py          the child's own state on disk
    backend.py        the plug `child.backend`, which turns weights into better weights
    crew.py           processes that are started, counted, replaced and dismissed
    orchestrator.py   the backend `hogwild`: a process for each core
    ga3c/             the backend `ga3c`: agents, and one engine

`python -m genkidama.child --parent ws://HOST:PORT` runs one.
"""
