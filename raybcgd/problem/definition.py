"""The training problem: everything that the server and the hosts derive from a config and the data."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from raybcgd.algorithms.api import Algorithm
from raybcgd.algorithms.contract import zeros
from raybcgd.config.schema import Config
from raybcgd.data.dataset import Dataset
from raybcgd.data.partition import Partition
from raybcgd.errors import ConfigError
from raybcgd.model.blocks import BlockLayout, divide
from raybcgd.model.divisions import DIVISIONS
from raybcgd.model.flat import FlatModel
from raybcgd.model.settings import MODELS
from raybcgd.model.zoo import build, loss_function
from raybcgd.plan.links import uplinks
from raybcgd.record.state_layout import StateArray, StateLayout
from raybcgd.wire.codecs import Codec
from raybcgd.wire.upload import Wire

_STACK = 64


@dataclass(frozen=True)
class Data:
    """The data set and its partition. On Ray, the hosts of a node share one copy in the object store."""

    dataset: Dataset
    partitions: tuple[Partition, ...]
    """The clients' samples in each data phase; one partition without phases."""
    test_rows: tuple[np.ndarray, ...]
    """The test samples of each data phase."""


@dataclass(frozen=True)
class Problem:
    """The light part of an experiment, sent to every host: the config, and how to build the model."""

    config: Config
    input_shape: tuple[int, ...]
    classes: int
    clients: int
    largest_client: int
    """Number of samples of the largest client."""
    own_module: nn.Module | None = None
    """The user's module, if one was passed as an object."""
    no_stack: str | None = None
    """Why clients train one at a time. None: they train in stacks."""

    @property
    def regression(self) -> bool:
        """Whether the targets are floats."""
        return self.classes == 0

    def module(self) -> nn.Module:
        """Return a new module with the initial parameters."""
        return copy.deepcopy(self._initial)

    def flat_model(self, device: torch.device | None = None) -> FlatModel:
        """Return a new module whose tensors are views of one flat vector. Default device: the CPU."""
        return FlatModel(self.module(), self.layout, self.dtype, device or torch.device("cpu"))

    @cached_property
    def _initial(self) -> nn.Module:
        if self.own_module is not None:
            return self.own_module
        return build(self.config.model, self.input_shape, self.classes, self.config.seed)

    def __getstate__(self) -> dict[str, object]:
        """Return the fields, without cached values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def model_label(self) -> str:
        """How errors name the model: the setting and its value, or the module that the user passed."""
        if self.own_module is not None:
            return f"module = {type(self.own_module).__name__}"
        return f'model.name = "{MODELS.name_of(self.config.model.name)}"'

    @property
    def algorithm(self) -> Algorithm:
        return cast("Algorithm", self.config.algorithm)

    @property
    def codec(self) -> Codec:
        return cast("Codec", self.config.wire)

    @cached_property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.config.model.dtype == "float64" else torch.float32

    @cached_property
    def loss(self) -> Callable[..., Tensor]:
        return loss_function(self.config.model)

    @cached_property
    def layout(self) -> BlockLayout:
        return divide(self.module(), self.config.blocks, self.config.data.partition.clients)

    @cached_property
    def trained(self) -> Tensor | None:
        """1 on parameters and 0 on buffers. None without buffers."""
        entries = [entry for layer in self.layout.order for entry in layer.entries]
        if all(entry.trained for entry in entries):
            return None
        return torch.cat([torch.full((entry.size,), float(entry.trained), dtype=self.dtype) for entry in entries])

    def trained_on(self, device: torch.device) -> Tensor | None:
        """Return `trained` on a device, where it stays."""
        if self.trained is None:
            return None
        if device not in self._trained_on:
            self._trained_on[device] = self.trained.to(device)
        return self._trained_on[device]

    @cached_property
    def _trained_on(self) -> dict[torch.device, Tensor]:
        return {}

    @property
    def parameters(self) -> int:
        """Number of trainable parameters. d, the length of the flat vector, also counts floating-point buffers."""
        return sum(entry.size for layer in self.layout.order for entry in layer.entries if entry.trained)

    @cached_property
    def wire(self) -> Wire:
        return self.wire_at(self.layout.edges)

    def wire_at(self, edges: tuple[int, ...] | None) -> Wire:
        """Return the wire format for other block edges. None: those of the config."""
        if edges is None:
            return self.wire
        return Wire(self.algorithm, self.layout.with_edges(edges), self.codec, self.dtype)

    @cached_property
    def uplinks(self) -> np.ndarray | None:
        """The clients' uplinks in bytes per second. None if they are not simulated."""
        links = self.config.cohort.links
        if links is None or self.algorithm.pooled:
            return None
        return uplinks(links, self.clients, self.config.seed)

    @property
    def data_phases(self) -> int:
        """D, the number of phases of block-cyclic data; 1 without phases."""
        return 1 if self.config.data.phases is None else self.config.data.phases.count

    @cached_property
    def num_blocks(self) -> int:
        """N, the number of blocks."""
        return len(self.layout.blocks)

    @cached_property
    def cohort_size(self) -> int:
        """S, the number of clients per round."""
        if self.algorithm.pooled:
            return 1
        blocks = self.config.blocks
        default = blocks.count is None and blocks.groups is None and blocks.division not in DIVISIONS
        return self.config.cohort.size(self.num_blocks, self.clients, self.algorithm.blockwise, default)

    @cached_property
    def stack(self) -> int:
        """Number of clients that are trained together. 0: one at a time."""
        wanted = self.config.local.stack
        if wanted and wanted != "auto" and self.no_stack is not None:
            raise ConfigError(
                f"local.stack = {wanted} cannot be used with this model: {self.no_stack}; set local.stack = 0"
            )
        return 0 if self.no_stack is not None else _STACK if wanted == "auto" else wanted

    @cached_property
    def keeps_state(self) -> bool:
        """Whether clients keep anything between rounds."""
        return self.state_layout.row_bytes > 0

    @cached_property
    def state_layout(self) -> StateLayout:
        """The layout of a client's state in memory and in files."""
        x = torch.empty(self.layout.size, dtype=self.dtype, device="meta")  # has a size, but uses no memory
        state = zeros(self.algorithm.Client, x, self.data_phases)._asdict()
        arrays = [StateArray(f"algorithm.{name}", _numpy_name(v.dtype), tuple(v.shape)) for name, v in state.items()]
        residuals = self.wire.initial_residuals().items()
        return StateLayout([*arrays, *(StateArray(name, v.dtype.str, v.shape) for name, v in residuals)])

    def fresh_row(self) -> np.ndarray:
        """Return the row of a client that has not taken part yet."""
        x = torch.zeros(self.layout.size, dtype=self.dtype)
        fresh = self.algorithm.client_init(x, self.data_phases)._asdict()
        state = {f"algorithm.{name}": values.numpy() for name, values in fresh.items()}
        row: np.ndarray = self.state_layout.pack([{**state, **self.wire.initial_residuals()}])[0]
        return row


def _numpy_name(dtype: torch.dtype) -> str:
    return torch.empty(0, dtype=dtype).numpy().dtype.str
