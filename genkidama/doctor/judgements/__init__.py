"""Pure: what the doctor thinks of what was found, from numbers and texts to a `Check`.

    check        a row of the answer, and its words for sizes and times
    machine      Python, processor, C library, cores, memory, disk, clock
    software     packages, torch, Box2D
    versions     requirements and versions, as packages write them
    connection   the parent's name, port, software, certificate and clock

Laws of this folder:
- Nothing here looks at the machine, the clock or the network.
- Nothing here needs more than the standard library.
- A check that is not ok says what to do.
"""
