"""A machine's part of a round.

Flower starts a process for every message, so what is to last from round to round lies in the
node's state: the optimizer's, and how far this machine has come. An episode ends with its round.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from studies.scaling.peers.learner import Worker

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    number = int(context.node_config["partition-id"])
    before = context.state.get("progress", ConfigRecord({"rounds": 0, "steps": 0}))
    rounds, steps = before["rounds"], before["steps"]
    worker = Worker(Path(context.run_config["folder"]), number, (number, rounds), steps)
    memory = worker.memory
    memory.weights[:] = message.content["arrays"].to_numpy_ndarrays()[0]
    if "optimizer" in context.state:
        memory.state[:], memory.clock[:] = context.state["optimizer"].to_numpy_ndarrays()
    made = sum(worker.one_batch() for _ in range(int(context.run_config["batches"])))
    context.state["optimizer"] = ArrayRecord([np.array(memory.state), np.array(memory.clock)])
    context.state["progress"] = ConfigRecord({"rounds": rounds + 1, "steps": steps + made})
    arrays = ArrayRecord([np.array(memory.weights)])
    metrics = MetricRecord({"num-examples": made})
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    return Message(content=content, reply_to=message)
