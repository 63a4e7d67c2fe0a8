"""The rules at the parent, beside `genkidama.averaging.Blend`. Pure NumPy.

`table.py` says which rule has which name. The parts that several rules share: `options` says what
may be set, `weighing` what a push counts, `buffer` how many pushes make a step, `pace` how long a
step is, `steps` how a gradient becomes one.
"""
