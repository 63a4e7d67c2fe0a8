"""The averaging. It writes `ready`, and begins when there is a file `go`."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    folder, workers = Path(context.run_config["folder"]), int(context.run_config["workers"])
    while len(list(grid.get_node_ids())) < workers:
        time.sleep(0.1)
    (folder / "ready").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)

    def keep(number: int, arrays: ArrayRecord) -> None:
        now = time.time()
        np.save(folder / f"snapshot-{number}.npy", arrays.to_numpy_ndarrays()[0])
        with (folder / "snapshots.txt").open("a") as file:
            file.write(f"{now:.3f} {number}\n")

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=workers, min_available_nodes=workers)
    initial = ArrayRecord([np.load(folder / "initial.npy")])
    strategy.start(grid, initial, num_rounds=1_000_000, evaluate_fn=keep)
