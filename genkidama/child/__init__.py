"""The child's role: trains on this machine and exchanges weights with a parent over one websocket.

A module here may wait, open sockets, read and write files, start processes and share memory with
them. `genkidama.protocol.session` interprets the messages, and `genkidama.learning` computes the
losses. The process that owns the socket never computes and imports no torch. Core processes
compute, and open no socket.

`python -m genkidama.child --parent ws://HOST:PORT` runs one.
"""
