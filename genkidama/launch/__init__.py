"""`launch`: a run on a Ray cluster. One Parent and its Children, wherever Ray finds room. Needs the extra `ray`.

    run = launch(Experiment.load("lunarlander.toml"), address="auto", out="runs/cluster")

Each part of the run is an actor of Ray's that starts one real process, `genkidama.parent` or `genkidama.child`, as on a shelf;
weights go from process to process by websocket, not through Ray.

Its laws:
- What a machine can lose is copied: this process, the driver, keeps the run directory. History and checkpoints come to it as
  they are written, as bytes.
- The copy of a search's study is kept back until all weights that it tells of are here.
- A part that is lost with its worker or its node is started again where there is room. A parent gets what the driver has copied;
  a child that is still there is told the new address, and goes on with its own weights.
- The parent takes no CPU of Ray's account, so that there is always room for it, and stands on the head node: with that one
  the whole cluster is lost anyway.
- A process ends with its actor, and an actor with the driver: nothing stays on a node, except its directory after a crash.
- The token that lets children in is drawn for each launch. It is never on a command line.
- An actor answers at once. It is the driver who waits, and it asks each part one thing at a time.

    places   the way to a Ray cluster, its nodes, and which of them each child belongs on
    node     the actors: each looks after one process, on whatever node it was put
    driver   the program that launches: asks the actors, copies the run, starts again what was lost
"""

from __future__ import annotations

from genkidama.launch.driver import launch
from genkidama.launch.places import layout

__all__ = ["launch", "layout"]
