"""pfl-research: its simulated backend with PyTorch and FedAvg.

    .bench-venv/bin/python -m benchmarks.peers.pfl_research BUNDLE

Setting: two single-threaded processes with `torch.distributed` (gloo), which is how pfl-research runs several
workers; user data are tensors that stay in memory, shuffled when a user is drawn; convolutional models in
channels_last; fused SGD; no evaluation, no metrics, no callbacks except a clock. Users are drawn with its
`minimize_reuse` sampler.
"""

import os
import socket
import subprocess
import sys
from typing import Any

from benchmarks.contestant import Turn, serve

WORKERS = 2


def join(rank: int, port: int) -> None:
    """Set the variables that `torchrun` sets. pfl reads them when it is imported."""
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "bench",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(WORKERS),
        "LOCAL_WORLD_SIZE": str(WORKERS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PFL_PYTORCH_DEVICE": "cpu",
    }


def worker(rank: int, port: int, path: str) -> Any:
    """Return this process as one of the two workers."""
    join(rank, port)
    from benchmarks.peers.pfl_worker import Worker  # after `join`

    return Worker(path)


def main() -> None:
    """Run as the first worker, which starts the second, or as the second one (`BUNDLE PORT`)."""
    path = sys.argv[1]
    if len(sys.argv) > 2:
        second = worker(1, int(sys.argv[2]), path)
        for line in sys.stdin:
            second.run(int(line))
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.peers.pfl_research", path, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as other:
        first = worker(0, port, path)

        def run(rounds: int) -> Turn:
            assert other.stdin is not None
            other.stdin.write(f"{rounds}\n")
            other.stdin.flush()
            return first.run(rounds)

        serve(run)


if __name__ == "__main__":
    main()
