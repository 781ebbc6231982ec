"""The data: a function that takes the table [data] of the config and returns a data set."""

import numpy as np

from raybcgd import Dataset

CLINICS, FEATURES, CLASSES = 20, 12, 4


def clinics(config):
    """Return synthetic patients of 20 clinics. Every clinic is a client, with its own devices and its own patients.

    Replace this function with one that reads your files.
    """
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, FEATURES))
    inputs, labels, clients = [], [], []
    for clinic in range(CLINICS):
        found = rng.choice(CLASSES, config.options["patients"], p=rng.dirichlet(np.ones(CLASSES)))
        bias = 0.5 * rng.normal(size=FEATURES)
        inputs.append(centres[found] + bias + 1.1 * rng.normal(size=(len(found), FEATURES)))
        labels.append(found)
        clients.append(np.full(len(found), f"clinic {clinic:02d}"))
    x, y, clients = np.concatenate(inputs).astype(np.float32), np.concatenate(labels), np.concatenate(clients)
    test = np.arange(len(y)) % 5 == 0
    # `partition` assigns each training sample to a client. Without it, data.partition splits the samples.
    return Dataset.from_tensors(x[~test], y[~test], x[test], y[test], name="clinics", partition=clients[~test])
