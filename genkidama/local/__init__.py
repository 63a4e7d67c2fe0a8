"""A whole cluster on this machine: here processes may be started, watched and ended.

Nothing here trains, or keeps a run: that is for the processes.
"""
