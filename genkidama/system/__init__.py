"""This machine is touched here: files, sockets, the clock, the terminal. Nothing is decided.

files.py        a file is replaced, whole
checkpoint.py   a weight vector and all that a run needs to go on, as one file
run.py          a run's directory: what lies where, and how to read it
history.py      history.jsonl: one line for each thing that happened
plugs.py        what an import string or a Gymnasium id names
machine.py      cores, memory, signals, the event loop
memory.py       a block that processes share
forkserver.py   nurseries, from which processes are forked
nursery.py      such a process, before anything is forked from it
watch.py        notices processes that hang
console.py      the log, and the one line of an error
systemd.py      what the service manager is told
address.py      HOST:PORT and fd://N
"""
