"""The child's role: trains on this machine and exchanges weights with a parent over one websocket.

A module here may wait, open sockets, read and write files, start processes and share memory with
them. `genkidama.session` decides what a message means, and `genkidama.learning` what a loss is. The
process that owns the socket never computes and imports no torch. Core processes compute, and open
no socket.

    client.py         Child: its life, trial after trial
    conversation.py   one session with the parent, over one connection after another
    uplink.py         a connection; one request and its one reply
    explanations.py   why there is no connection, with the way out
    credentials.py    the token, and the certificates that are trusted
    state.py          the child's own state on disk
    backend.py        the plug `child.backend`, which turns weights into better weights
    crew.py           processes that are started, counted, replaced and dismissed
    nurseries.py      the nurseries, from which processes are forked
    member.py         one of them, as the crew sees it
    sanity.py         what environments give must be numbers
    process.py        what every such process has: a line to its crew, a memory guard, an entry
    semaphore.py      how the processes of a child wait for each other
    memory.py         what the cores share: which arrays
    shared_weights.py what an exchange reads and writes of it
    orchestrator.py   the backend `hogwild`: a process for each core
    core.py           such a process: it acts and learns
    collector.py      how it collects a batch, in one environment or in several
    core_nursery.py   where it is born, with torch warm
    choosing.py       how the actions of a batch are chosen
    replay.py         the steps that cores keep
    sampling.py       what learners draw of them; remembered.py puts the two together
    priorities.py     how often each is drawn
    target.py         θ⁻, older weights that learners compare with
    actors.py         cores that only act, for a learner beside the parent
    actor.py          such a process
    outbox.py         its blocks of steps, on their way to the parent
    ga3c/             the backend `ga3c`: agents, and one engine

`python -m genkidama.child --parent ws://HOST:PORT` runs one.
"""
