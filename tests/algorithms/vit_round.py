"""Run one round of FedBCGD with ViT-Base/16 in its own process, to measure its peak memory; print JSON."""

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

from raybcgd.data.dataset import Dataset
from tests.algorithms.conftest import Lab


def main(folder: str, clients: int) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (12, 3, 64, 64), dtype=np.uint8), rng.integers(0, 200, 12)
    dataset = Dataset.from_tensors(images, labels, images, labels, classes=200)
    started = time.perf_counter()
    played = Lab(Path(folder)).play(
        {
            "rounds": 1,
            # Two images per client, in one step.
            "data": {"partition": {"kind": "iid", "clients": 6, "rho": None, "samples_per_client": None}},
            "model": {"name": "vit_b_16", "options": None},
            "blocks": {"division": "vit_b_16", "count": None},
            "algorithm": {"name": "fedbcgd", "lr": 0.01},
            "local": {"epochs": 1, "batch_size": 16},
            "cohort": {"clients_per_round": clients, "cover": "some"},
        },
        dataset=dataset,
    )
    (result,) = played.rounds
    layout = played.problem.layout
    moved = played.x - played.start
    answer = {
        "seconds": time.perf_counter() - started,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "blocks": [block.size for block in layout.blocks],
        "shared": layout.shared.size,
        "clients": len(result.participants),
        "upload_bytes": result.traffic.upload_bytes,
        "upload_floats_by_block": list(result.blocks.upload_floats),
        "moved": [bool(moved[block.slice].any()) for block in layout.all_blocks],
        "finite": bool(np.isfinite(played.x.numpy()).all()),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
