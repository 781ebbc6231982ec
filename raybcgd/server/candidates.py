"""The second exchange of a round: the participants report the losses of candidate models on their data."""

from collections.abc import Sequence

from torch import Tensor

from raybcgd.messages import Piece, Traffic
from raybcgd.problem import Data, Problem
from raybcgd.server.aggregation import Expected
from raybcgd.server.pool import Pool
from raybcgd.wire.upload import Wire


def mean_losses(
    problem: Problem,
    data: Data,
    pool: Pool,
    models: Sequence[Tensor],
    participants: Sequence[Expected],
    data_phase: int,
) -> tuple[float, ...]:
    """Return the mean over the participants of each model's loss on their training samples, weighted as in the round.

    The model is in evaluation mode, and images are not augmented.
    """
    size, sizes = problem.config.evaluation.batch_size, data.partitions[data_phase].sizes
    pieces, shares = [], []
    for model in range(len(models)):
        for (client, _), _, weight in participants:
            samples = int(sizes[client])
            for start in range(0, samples, size):
                pieces.append(Piece(model, start, min(start + size, samples), client, data_phase))
                shares.append(weight / samples)
    scores = pool.evaluate(models, pieces)()
    totals = [0.0] * len(models)
    for piece, share, score in zip(pieces, shares, scores, strict=True):
        totals[piece.model] += share * score.loss
    weights = sum(one.weight for one in participants)
    return tuple(total / weights for total in totals)


def second_exchange(wire: Wire, models: int, participants: int) -> tuple[Traffic, Traffic]:
    """Return the traffic of the uploaded losses, and of the models that the participants download to compute them."""
    count, itemsize = models * participants, wire.dtype.itemsize
    sizes = [count * block.size for block in (*wire.layout.blocks, wire.layout.shared)]
    losses = Traffic(count, count * itemsize, (0,) * len(sizes))
    return losses, Traffic(sum(sizes), sum(sizes) * itemsize, tuple(sizes))
