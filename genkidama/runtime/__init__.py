"""The operating system: processes, forkserver, signals, files, sockets, limits."""
