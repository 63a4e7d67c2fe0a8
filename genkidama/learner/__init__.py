"""The learner of a parent whose children send experience: a process beside it, on the same machine.

The parent needs neither torch nor an environment, so what needs them is a process of its own. The
two take turns: the parent hands over a batch, the learner learns from it and says so.

`genkidama.parent.learner` is the parent's side.
"""
