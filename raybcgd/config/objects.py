"""`[objects]`: the module, the data set and the partition that were passed to `run` as Python objects."""

import hashlib
from typing import TYPE_CHECKING, Any

from raybcgd.section import Section

if TYPE_CHECKING:
    from torch import nn

    from raybcgd.data.clients import Clients
    from raybcgd.data.dataset import Dataset


class ObjectsConfig(Section):
    """`[objects]`: the Python objects of a run. Leave it out; run folders record it."""

    module: str | None = None
    """Class of the module."""
    module_parameters: int | None = None
    """Number of trainable parameters of the module."""
    module_sha256: str | None = None
    """Hash of the module's initial state."""
    dataset: str | None = None
    """Name of the data set."""
    train_shape: tuple[int, ...] | None = None
    """Shape of the training samples."""
    test_shape: tuple[int, ...] | None = None
    """Shape of the test samples."""
    dataset_sha256: str | None = None
    """Hash of all samples, targets and clients."""

    partition: str | None = None
    """Description of the partition, with its number of clients."""
    partition_sha256: str | None = None
    """Hash of the assignment of training samples to clients."""

    @property
    def arguments(self) -> str:
        """The arguments of a Python call with these objects."""
        return ", ".join(f"{name}=…" for name in ("module", "dataset", "partition") if getattr(self, name) is not None)

    @property
    def call(self) -> str:
        """The Python call that resumes a run with these objects."""
        return f"run(config, {self.arguments}, out=…, resume=True)"


def describe(module: "nn.Module | None", dataset: "Dataset | None", clients: "Clients | None" = None) -> ObjectsConfig:
    """Return what identifies a module, a data set and a partition."""
    found: dict[str, Any] = {}
    if module is not None:
        digest = hashlib.sha256()
        for name, tensor in module.state_dict().items():
            digest.update(name.encode())
            if hasattr(tensor, "detach"):  # modules can also keep other state
                digest.update(tensor.detach().double().cpu().contiguous().numpy().data)
        found["module"] = f"{type(module).__module__}.{type(module).__qualname__}"
        found["module_parameters"] = sum(p.numel() for p in module.parameters() if p.requires_grad)
        found["module_sha256"] = digest.hexdigest()
    if dataset is not None:
        digest = hashlib.sha256()
        for split in (dataset.train, dataset.test):
            digest.update(split.inputs.data)
            digest.update(split.targets.data)
        if dataset.clients is not None:
            digest.update(dataset.clients.owners.data)
        found["dataset"], found["dataset_sha256"] = dataset.name, digest.hexdigest()
        found["train_shape"], found["test_shape"] = dataset.train.inputs.shape, dataset.test.inputs.shape
    if clients is not None:
        found["partition"] = f"a partition of {len(clients)} clients"
        found["partition_sha256"] = hashlib.sha256(clients.owners.data).hexdigest()
    return ObjectsConfig(**found)
