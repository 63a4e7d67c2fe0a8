"""Real searches beside each other: HyperTrick and its rivals, in the same time.

contestants.py   who takes part, and which searches are wanted
measure.py       one search, its figures, and what its best trial plays
document.py      the tables
work.py          the methods at equal expected work instead of equal time, with its own rows
__main__.py      plan, run, report, train
"""
