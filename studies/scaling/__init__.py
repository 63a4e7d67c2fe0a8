"""How much sooner many slow machines learn LunarLander than one of them, beside peers.

docs/results/scaling.md has what it found. `python -m studies.scaling --help` tells how.

    matrix.py    what is measured: variants, peers, disturbances, links; a row's identity and order
    figures.py   from raw rows to speed-up and its parts
    machines.py  processes with their shares of the CPU cores, and the network between them
    links.py     network namespaces with slow links, which benchmarks/relay.py carries
    ours.py      one run of a Parent and its Children, and the row of any run
    rivals.py    one run of a peer
    picture.py   speed-up against machines, as SVG
"""
