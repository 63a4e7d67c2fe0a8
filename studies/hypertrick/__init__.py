"""Searches are simulated here, in virtual time: HyperTrick and its rivals.

simulator.py     runs any method on any problem
methods.py       HyperTrick and its rivals
problems.py      what they search
contestants.py   the methods that the tables compare, Optuna's pruners and samplers among them
tables.py        what `python -m studies.hypertrick` prints
"""
