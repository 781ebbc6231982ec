"""Fixed splits: train and test for data that has no test split, train and validation for tuning."""

import numpy as np

from raybcgd.data.clients import Clients
from raybcgd.data.dataset import Labels
from raybcgd.randomness import stream


def hold_out(targets: Labels) -> tuple[Labels, Labels]:
    """Return train and test indices. The test split is every fifth sample of each label, in file order."""
    by_label = np.split(np.argsort(targets, kind="stable"), np.cumsum(np.bincount(targets)))
    test = np.sort(np.concatenate([samples[4::5] for samples in by_label]))
    return np.delete(np.arange(len(targets)), test), test


def hold_out_share(targets: Labels, share: float, clients: Clients | None = None) -> tuple[Labels, Labels]:
    """Return train and validation indices. Validation data is `share` of each label, but at least one sample.

    Every run has the same split. A client of the data set keeps at least one training sample.
    """
    order = stream(0, "validation").permutation(len(targets))
    by_label = [order[targets[order] == label] for label in np.unique(targets)]
    held = np.sort(np.concatenate([samples[: max(1, round(share * len(samples)))] for samples in by_label]))
    if clients is not None:
        emptied = np.setdiff1d(clients.owners, np.delete(clients.owners, held))
        owners = clients.owners[held]
        last = [np.flatnonzero(owners == client)[0] for client in emptied if client >= 0]
        held = np.delete(held, last)
    return np.delete(np.arange(len(targets)), held), held
