"""How much sooner many slow machines learn LunarLander than one of them, beside peers.

It has no claim yet: it measures what there is. `python -m benchmarks.scaling --help` tells how.

    matrix.py    what is measured: variants, peers, disturbances, links; a row's identity and order
    figures.py   from raw rows to speed-up, efficiency and their parts
    groups.py    shares of a CPU core, by control groups
    links.py     network namespaces with a slow link; relay.py is the process that is that link
    ours.py      one run of a Parent and its Children
    rivals.py    one run of a peer
    picture.py   speed-up against machines, as SVG
"""
