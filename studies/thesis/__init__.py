"""The thesis' tables and figures, repeated with seeds.

`python -m studies.thesis --help` tells how.

    cells.py      what is trained: every cell as data, and the order of all runs
    published.py  what the thesis prints
    measure.py    one run: train, then judge every checkpoint
    program.py    the thesis' own program, as a control
    stand_in.py   what it calls in place of old libraries
    small_tasks.py  α and β on cart pole and MinAtar's Breakout
    unequal.py    a training with two children of unequal speed
    statistics.py from rows to what the seeds of a cell come to
    tables.py     the tables of docs/results/thesis.md, whose prose is written by hand
    pictures.py   its figures
    lander_v2.py  LunarLander-v2, as far as it differs from v3
"""
