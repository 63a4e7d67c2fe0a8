"""The thesis' tables and figures, repeated with seeds.

`python -m studies.thesis --help` tells how.

    cells.py      what is trained: every cell as data, and the order of all runs
    published.py  what the thesis prints
    measure.py    one run: train, then judge every checkpoint
    program.py    the thesis' own program, as a control
    stand_in.py   what it calls in place of old libraries
    virtual.py    a training as if each of its processes had a core of its own
    physics.py    whether LunarLander is the one that the thesis had
    recorder.py   what gym 0.23 plays for that
    unequal.py    a training with two children of unequal speed
    statistics.py from rows to what the seeds of a cell come to
    tables.py     the tables of docs/results/thesis.md, whose prose is written by hand
    options.py    options that several of these commands have
    pictures.py   its figures
    lander_v2.py  LunarLander-v2, as far as it differs from v3
"""
