"""Flower as a peer: pushes a second on its legacy gRPC path, which is the fastest that it has.

A push is one client's answer in a round of federated averaging: the client receives the weights
and returns them unchanged, and the server averages. Evaluation and telemetry are off, and logging
is cut to warnings, since none of them belongs to an exchange. The clients are threads of one
process, which on one core is faster than a process each.

`benchmarks/exchange.py` starts both roles. It starts the clients once the server listens, since
they try only once. By hand, with benchmarks/.venv/bin/python:

    benchmarks/peers/flower.py server 8080 3000 16 --seconds 3 --result result.json
    benchmarks/peers/flower.py clients 8080 16
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

# Before Flower is imported, which reads it then.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import flwr
import numpy as np
from flwr.client import NumPyClient, start_client
from flwr.common import ndarrays_to_parameters
from flwr.server import Server, ServerConfig, SimpleClientManager, start_server
from flwr.server.history import History
from flwr.server.strategy import FedAvg

logging.getLogger("flwr").setLevel(logging.ERROR)

WARM_UP_ROUNDS = 10


class Echo(NumPyClient):  # type: ignore[misc]
    """A client that learns nothing."""

    def fit(
        self, parameters: list[Any], config: dict[str, Any]
    ) -> tuple[list[Any], int, dict[str, Any]]:
        return parameters, 1, {}


class TimedServer(Server):  # type: ignore[misc]
    """Runs rounds for a time instead of a number of them."""

    seconds = 3.0
    rounds = 0
    elapsed = 0.0
    failures = 0

    def fit(self, num_rounds: int, timeout: float | None) -> tuple[History, float]:
        self.parameters = self._get_initial_parameters(server_round=0, timeout=timeout)
        for number in range(WARM_UP_ROUNDS):
            self._round(number + 1, timeout)
        self.failures = 0
        begin = time.perf_counter()
        while self.elapsed < self.seconds:
            self.rounds += 1
            self._round(WARM_UP_ROUNDS + self.rounds, timeout)
            self.elapsed = time.perf_counter() - begin
        return History(), self.elapsed

    def _round(self, number: int, timeout: float | None) -> None:
        result = self.fit_round(number, timeout)
        if result is None or result[0] is None:
            raise SystemExit(f"round {number} gave no weights")
        self.parameters = result[0]
        self.failures += len(result[2][1])


def serve(port: int, size: int, clients: int, seconds: float, result: Path) -> None:
    strategy = FedAvg(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_available_clients=clients,
        initial_parameters=ndarrays_to_parameters([np.zeros(size, np.float32)]),
    )
    manager = SimpleClientManager()
    server = TimedServer(client_manager=manager, strategy=strategy)
    server.seconds = seconds
    start_server(
        server_address=f"127.0.0.1:{port}",
        server=server,
        client_manager=manager,
        config=ServerConfig(num_rounds=1),
    )
    figures = {
        "flwr": flwr.__version__,
        "parameters": size,
        "clients": clients,
        "rounds": server.rounds,
        "failures": server.failures,
        "seconds": server.elapsed,
        "pushes_per_second": (server.rounds * clients - server.failures) / server.elapsed,
    }
    result.write_text(json.dumps(figures), encoding="utf-8")


def one_client(port: int) -> None:
    start_client(server_address=f"127.0.0.1:{port}", client=Echo().to_client(), insecure=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    roles = parser.add_subparsers(dest="role", required=True)
    server = roles.add_parser("server")
    server.add_argument("port", type=int)
    server.add_argument("size", type=int, help="numbers of the network")
    server.add_argument("clients", type=int)
    server.add_argument("--seconds", type=float, default=3.0)
    server.add_argument(
        "--result", type=Path, required=True, help="where to write the figures, as JSON"
    )
    swarm = roles.add_parser("clients")
    swarm.add_argument("port", type=int)
    swarm.add_argument("clients", type=int)
    options = parser.parse_args()
    if options.role == "server":
        serve(options.port, options.size, options.clients, options.seconds, options.result)
        return
    members = [
        threading.Thread(target=one_client, args=(options.port,), daemon=True)
        for _ in range(options.clients)
    ]
    for member in members:
        member.start()
    for member in members:
        member.join()


if __name__ == "__main__":
    main()
