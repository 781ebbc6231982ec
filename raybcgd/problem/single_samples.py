"""Check before a run: whether the model can train on a batch of one sample, if a client has such a batch."""

import logging
import warnings

import numpy as np
import numpy.typing as npt
import torch

from raybcgd.data.dataset import Dataset
from raybcgd.data.normalise import normalise
from raybcgd.data.partition import Ints, Natural
from raybcgd.errors import ConfigError, own_line
from raybcgd.problem.definition import Data, Problem

Bools = npt.NDArray[np.bool_]
log = logging.getLogger(__name__)


def check_single_samples(problem: Problem, data: Data) -> None:
    """Raise an error if clients train on a batch of one sample and the model, for example its batch norm, cannot.

    If failing clients are dropped and other clients remain, this is only a warning.
    """
    sizes = np.stack([part.sizes for part in data.partitions])
    affected: Bools = np.any(
        np.isin(sizes, [n for n in np.unique(sizes).tolist() if _trains_on_one(problem, n)]), axis=0
    )
    if not affected.any() or (reason := _failure(problem, data.dataset)) is None:
        return
    found = f"{problem.model_label} cannot train on a batch of one sample ({reason})"
    found, fix = _explained(problem, data.dataset, sizes, affected, found)
    if problem.config.cohort.on_client_error == "drop" and not affected.all():
        log.warning("%s: these clients are dropped from every round; %s", found, fix)
    else:
        raise ConfigError(f"{found}; {fix}")


def _trains_on_one(problem: Problem, samples: int) -> bool:
    """Return whether a client with this many samples trains on a batch of one sample."""
    local = problem.config.local
    if samples < 2 or local.batch_size == 1:
        return samples > 0
    if local.batch_size == "full" or local.drop_last or samples % local.batch_size != 1:
        return False
    # The remainder is the last batch of a pass. With fixed batches, the full gradient uses all batches.
    return problem.algorithm.fixed_batches or local.num_steps(samples) >= local.num_batches(samples)


def _failure(problem: Problem, dataset: Dataset) -> str | None:
    """Return why the model cannot train on one sample, or None. Torch's generator is unchanged."""
    module = problem.module().to(problem.dtype).train()
    inputs = normalise(torch.from_numpy(dataset.train.inputs[:1]), dataset, problem.dtype)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            module(inputs)
        except Exception as error:  # the module may be the user's code
            return own_line(error)
    return None


def _describe(problem: Problem, dataset: Dataset, client: int) -> str:
    natural = isinstance(problem.config.data.partition, Natural) and not problem.algorithm.pooled
    return dataset.clients.describe(client) if natural and dataset.clients is not None else f"client {client}"


def _explained(problem: Problem, dataset: Dataset, sizes: Ints, affected: Bools, found: str) -> tuple[str, str]:
    """Return what leads to batches of one sample, and what to change."""
    local, clients = problem.config.local, f"{affected.sum()} of {len(affected)} clients"
    if local.batch_size == 1:
        return f"local.batch_size = 1, but {found}", "set local.batch_size to at least 2, and local.drop_last = true"
    single = (sizes == 1).any(axis=0)
    if single.any():
        example = _describe(problem, dataset, int(single.argmax()))
        return (
            f"{single.sum()} of {len(single)} clients, such as {example}, have one sample, but {found}",
            "partition the data so that every client has at least two samples, or use group norm instead of batch norm",
        )
    first = int(affected.argmax())
    size = next(int(n) for n in sizes[:, first] if _trains_on_one(problem, int(n)))
    batch = f"local.batch_size = {local.batch_size} leaves a batch of one sample for {clients}"
    return (
        f"{batch}, such as {_describe(problem, dataset, first)} with {size} samples, but {found}",
        "set local.drop_last = true, or another local.batch_size",
    )
