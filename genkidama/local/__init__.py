"""A whole cluster on this machine: here processes may be started, watched and ended.

Nothing here trains, or keeps a run: that is for the processes.

cluster.py      `train` and `search`
attendance.py   what becomes of a child that ends early
complaints.py   what processes complain about
directory.py    the run directory before its parent comes
processes.py    one process: started, started again, ended
evaluation.py   how good a policy is
progress.py     the line that shows how a run goes
"""
