"""How well the global model serves each client: its accuracy on the clients' own training samples."""

from collections.abc import Sequence

import numpy as np

from raybcgd.data.partition import Partition
from raybcgd.messages import Piece, Score
from raybcgd.randomness import stream
from raybcgd.record.rounds import ClientQuality
from raybcgd.server.settings import EvaluationConfig


def client_pieces(config: EvaluationConfig, partitions: Sequence[Partition], seed: int) -> list[Piece]:
    """Cut the training samples of the clients chosen by `evaluation.clients` into pieces, in every data phase."""
    clients = len(partitions[0])
    wanted = clients if config.clients == "all" else min(config.clients, clients)
    chosen = np.sort(stream(seed, "evaluated clients").permutation(clients)[:wanted]).tolist()
    return [
        Piece(phase, start, min(start + config.batch_size, size), client, phase)
        for phase, partition in enumerate(partitions)
        for client in chosen
        for size in (len(partition.client(client)),)
        for start in range(0, size, config.batch_size)
    ]


def client_quality(parts: Sequence[Piece], scores: Sequence[Score]) -> ClientQuality | None:
    """Return the statistics over the clients from the scores of all pieces, in order. None without clients."""
    correct: dict[int, int] = {}
    samples: dict[int, int] = {}
    for part, score in zip(parts, scores, strict=True):
        if part.client is not None:
            correct[part.client] = correct.get(part.client, 0) + score.correct
            samples[part.client] = samples.get(part.client, 0) + score.samples
    if not samples:
        return None
    accuracies = np.sort([correct[client] / samples[client] for client in samples])
    return ClientQuality(
        mean=float(accuracies.mean()),
        worst_tenth=float(accuracies[: max(1, len(accuracies) // 10)].mean()),
        deviation=float(accuracies.std()),
    )
