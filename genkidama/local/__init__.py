"""A whole cluster on this machine: here processes may be started, watched and ended.

Nothing here trains, or keeps a run: that is for the processes.

cluster.py      `train` and `search`
attendance.py   what becomes of a child that ends early
complaints.py   what processes complain about
directory.py    the run directory before its parent comes
processes.py    one process: started, started again, ended
evaluation.py   how good a policy is
players.py      the processes that play it
tries.py        how an evaluation stands
progress.py     follows a run, and shows how it goes: in lines, or on a
screen.py       display, on a terminal or in a notebook
frames.py       what a display looks like
"""
