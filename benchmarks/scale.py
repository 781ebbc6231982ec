"""Measure what a large round costs the coordinator and the hosts, and write docs/scale.md from it."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import simulated
from raybcgd.aggregation.exact import ExactSum

PAGE = Path(__file__).parent.parent / "docs/scale.md"
FEW, MANY, COHORT = 16, 256, 1000
"""Simulated hosts of the two measurements of the coordinator, and clients per round."""
NODES, GPUS_PER_NODE, CLIENTS, PARAMETERS, BLOCKS = 125, 8, 10_000, 85_797_120, 6
"""The example: one host per GPU, and a model as large as ViT-Base."""
LINK = 10e9
"""Bytes per second into the coordinator."""


def measure(quick: bool) -> dict[str, float]:
    """Return CPU seconds of the coordinator per host and per client, and of exact sums per float."""
    few, many = (float(np.median(point["seconds"])) for point in simulated.coordinator(quick, (FEW, MANY)).points)
    per_host = (many - few) / (MANY - FEW)
    rows, total = torch.randn(4, 1 << 22) * 1e-3, []
    for _ in range(3 if quick else 9):
        result = ExactSum(rows.shape[1], len(rows), torch.float32)
        result.add(rows)  # allocates
        began = time.process_time()
        result.add(rows)
        total.append(time.process_time() - began)
    return {
        "seconds_per_host": per_host,
        "seconds_per_client": (few - FEW * per_host) / COHORT,
        "seconds_per_float": float(np.median(total)) / rows.numel(),
    }


def page(costs: dict[str, float]) -> str:
    """Return docs/scale.md."""
    hosts = NODES * GPUS_PER_NODE
    upload = PARAMETERS / BLOCKS
    floats, partial = CLIENTS * upload, 8 * PARAMETERS
    values: dict[str, Any] = {
        "host_ms": 1e3 * costs["seconds_per_host"],
        "client_ms": 1e3 * costs["seconds_per_client"],
        "float_ns": 1e9 * costs["seconds_per_float"],
        "hosts": _thousands(hosts),
        "per_host": CLIENTS // hosts,
        "clients": _thousands(CLIENTS),
        "nodes": NODES,
        "gpus": GPUS_PER_NODE,
        "blocks": BLOCKS,
        "millions": PARAMETERS / 1e6,
        "upload_mb": 4 * upload / 1e6,
        "all_gb": 4 * floats / 1e9,
        "all_link": 4 * floats / LINK,
        "all_sum": floats * costs["seconds_per_float"],
        "link": LINK / 1e9,
        "host_sum": floats / hosts * costs["seconds_per_float"],
        "partial_gb": partial / 1e9,
        "two_partials_gb": 2 * partial / 1e9,
        "received_gb": NODES * partial / 1e9,
        "received_link": NODES * partial / LINK,
        "events": hosts * costs["seconds_per_host"] + CLIENTS * costs["seconds_per_client"],
        "few": FEW,
        "many": MANY,
    }
    return _TEXT.format(**values)


def _thousands(value: int) -> str:
    return f"{value:,}".replace(",", " ")


_TEXT = """# What limits a large cluster

This page estimates a round of FedBCGD with ViT-Base on {hosts} GPUs from costs that were measured on one core.
`make bench` measures them again and writes this page from `benchmarks/results.json`.

The example has {nodes} nodes with {gpus} GPUs, one host per GPU, and {clients} clients per round, {per_host} per
host. ViT-Base has {millions:.0f} million parameters in {blocks} blocks. An upload is one block and the small shared
block: {upload_mb:.0f} MB.

| cost | measured |
|---|---|
| coordinator, per host and round | {host_ms:.2f} ms of CPU |
| coordinator, per client | {client_ms:.2f} ms of CPU: plan, record, ledger |
| exact sum, per float of an upload | {float_ns:.1f} ns on one core |

The first two come from rounds with {few} and with {many} simulated hosts (`benchmarks/simulated.py`). A partial sum
needs 8 bytes per float; the model in float32 needs 4.

## If every upload goes to the coordinator

This is `hosts.aggregation = "coordinator"`.

- **Bytes.** {clients} uploads of {upload_mb:.0f} MB are {all_gb:.0f} GB per round for one network link. At
  {link:.0f} GB/s, this takes {all_link:.0f} s.
- **Additions.** One thread needs {all_sum:.0f} s.

## If hosts sum the uploads of their clients

This is `hosts.aggregation = "hosts"`. The default, `"auto"`, chooses it here, because the sums of all nodes have fewer
bytes than the uploads.

- **Additions.** Each host adds its {per_host} uploads in {host_sum:.1f} s, in parallel.
- **Bytes.** Clients with the same block are scheduled on the same hosts, so a host sums one or two of the blocks.
  The hosts of a node combine their sums, and a node sends at most {partial_gb:.1f} GB. The coordinator receives
  {nodes} such sums: {received_gb:.0f} GB, or {received_link:.1f} s at {link:.0f} GB/s. Its memory does not depend
  on the number of clients.
- **Events.** {hosts} hosts and {clients} clients need {events:.1f} s of the coordinator's CPU per round.

Local training of {per_host} clients with ViT-Base takes minutes, so none of these is a bottleneck today. The first
to become one would be the coordinator's network link. Since the sums are exact, any tree of additions gives the same
bits: combining sums across nodes before they reach the coordinator would divide its {received_gb:.0f} GB by the width
of the tree. `raybcgd/engine/ray/collection.py` is the place for it.

## What does not scale yet

- One coordinator applies the server rule: a few passes over {millions:.0f} million floats.
- The round record lists every participant.
- A partial sum stays in the memory of its host while the clients train. A method that uploads the whole model needs
  {partial_gb:.1f} GB per host for ViT-Base, and one that also sums control variates needs {two_partials_gb:.1f} GB.
"""
