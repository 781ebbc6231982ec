"""Flower: its simulation runtime on Ray, with a FedAvg strategy.

    .bench-venv/bin/python -m benchmarks.peers.flower BUNDLE

Setting: two client actors with one CPU and one thread each, which keep the data and the model in memory, so that a
client reads nothing from disk; convolutional models in channels_last; fused SGD; no evaluation; the grid polls for
replies every 5 ms instead of every 100 ms; no log and no telemetry. Sampling, messages and aggregation are
Flower's own.
"""

import logging
import os
import sys
import time
from itertools import pairwise
from typing import Any

import torch
from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.bundle import Bundle
from benchmarks.contestant import Turn, serve
from benchmarks.peers.flower_client import PATH, app

ACTORS = 2


def server_app(bundle: Bundle) -> ServerApp:
    """Return the server, which runs rounds when told to."""
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        grid.pull_interval = 0.005
        strategy = FedAvg(
            fraction_train=bundle.cohort / bundle.clients, fraction_evaluate=0.0, min_available_nodes=bundle.clients
        )
        arrays = ArrayRecord(bundle.module.state_dict())

        def run(rounds: int) -> Turn:
            nonlocal arrays
            ends: list[float] = []

            def mark(_: int, __: ArrayRecord) -> Any:
                ends.append(time.perf_counter())

            arrays = strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=mark).arrays
            bundle.module.load_state_dict(arrays.to_torch_state_dict())
            seconds = [end - start for start, end in pairwise(ends)]
            return Turn(seconds, bundle.loss(bundle.module))

        serve(run)

    return server


def main() -> None:
    """Start the simulation."""
    os.environ[PATH] = sys.argv[1]
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    bundle = Bundle.load(sys.argv[1])
    client: ClientApp = app
    run_simulation(
        server_app=server_app(bundle),
        client_app=client,
        num_supernodes=bundle.clients,
        backend_config={
            "init_args": {"num_cpus": ACTORS, "include_dashboard": False, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
