"""This machine is touched here: files, sockets, the clock, the terminal. Nothing is decided."""
