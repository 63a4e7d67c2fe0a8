"""Real searches beside each other: HyperTrick and its rivals, in the same time.

contestants.py   who takes part, and which searches are wanted
measure.py       one search, its figures, and what its best trial plays
document.py      the tables
__main__.py      plan, run, report, train
"""
