"""A whole cluster on this machine: one parent and some children, started, watched and ended as processes.

cluster.py      `train` and `search`
evaluation.py   how good a policy is
progress.py     the line that shows how a run goes
"""
