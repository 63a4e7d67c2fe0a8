"""The search for hyperparameters: who trains what, what is remembered of it, and what it came to.

service.py      hands out trials and ends them, pure
roster.py       which node trains which trial, pure
phases.py       a phase of a trial, as it is reported and kept, pure
study.py        the knowledge database: an Optuna study, in a thread of its own
findings.py     what a study says about its search
report.py       the findings as text; figures.py as figures; importance.py: which settings matter

The rule itself is `genkidama.hypertrick`, which knows nothing of experiments.
"""
