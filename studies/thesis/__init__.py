"""The thesis' tables, repeated with seeds.

`python -m studies.thesis --help` tells how.

    cells.py      what is trained: every cell as data, and the order of all runs
    published.py  what the thesis prints
    measure.py    one run: train, then judge every checkpoint
    statistics.py from rows to what the seeds of a cell come to
    tables.py     the tables of docs/results/thesis.md, whose prose is written by hand
"""
