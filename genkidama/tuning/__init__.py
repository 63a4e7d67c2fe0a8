"""A search is led, kept and told here; only study and storage touch a database, figures a file.

    records.py      what is kept of a search, and the words for it; pure
    methods.py      the methods: the rule of each, and the words for it; pure
    service.py      hands out trials and ends them; pure
    roster.py       which node trains which trial; pure
    study.py        the knowledge database: an Optuna study, in a thread of its own
    storage.py      where a study lies
    findings.py     what a study says about its search
    bias.py         what the order of the reports did to the trials
    importance.py   which settings matter
    report.py       the findings as text; timeline.py is its chart, wording.py how it writes
    figures/        the findings as figures

The rule itself is `genkidama.hypertrick`, which knows nothing of experiments.
"""
