"""The training problem: everything that the server and the hosts derive from a config and the data."""

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from raybcgd.algorithms.api import Algorithm
from raybcgd.algorithms.contract import zeros
from raybcgd.config.objects import ObjectsConfig, describe
from raybcgd.config.schema import Config
from raybcgd.data.dataset import Dataset
from raybcgd.data.from_python import as_dataset
from raybcgd.data.normalise import normalise
from raybcgd.data.partition import Partition, partition
from raybcgd.data.phases import phases
from raybcgd.data.sources import load
from raybcgd.errors import ConfigError
from raybcgd.model.blocks import BlockLayout, divide, recut
from raybcgd.model.divisions import DIVISIONS
from raybcgd.model.flat import FlatModel
from raybcgd.model.given import own_module
from raybcgd.model.metrics import Metrics
from raybcgd.model.outputs import logits_of
from raybcgd.model.settings import LOSSES, MODELS
from raybcgd.model.stacking import fails_in_stack, not_stackable
from raybcgd.model.trial import try_out
from raybcgd.model.zoo import build, loss_function
from raybcgd.plan.links import uplinks
from raybcgd.randomness import stream
from raybcgd.record.state_layout import StateArray, StateLayout
from raybcgd.storage import open_address
from raybcgd.wire.codecs import Codec
from raybcgd.wire.upload import Wire

log = logging.getLogger(__name__)

_STACK = 64
_STACKED_PARAMETERS = 200_000


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


def _no_stack(problem: Problem, dataset: Dataset) -> str | None:
    """Return why clients train one at a time. None: they train in stacks. The model is tried out once."""
    module, wanted = problem.module(), problem.config.local.stack
    if wanted == "auto":
        if any(isinstance(child, nn.modules.conv._ConvNd) for child in module.modules()):
            return "a stack of convolutions is slower"
        if problem.layout.size > _STACKED_PARAMETERS:
            return "a stack of models of this size is slower"
    if wanted == 0 or (reason := not_stackable(module)) is not None:
        return reason if wanted else "local.stack = 0"
    rows = np.arange(3) % len(dataset.train)
    inputs = normalise(torch.from_numpy(dataset.train.inputs[rows]), dataset, problem.dtype)
    targets = torch.from_numpy(dataset.train.targets[rows])
    reason = fails_in_stack(problem.flat_model(), problem.loss, inputs, targets)
    if reason is not None and wanted == "auto":
        _note(reason)
    return reason


@cache
def _note(reason: str) -> None:
    """Log why a model does not train in stacks, once per process."""
    log.warning("note: clients train one at a time, because the model cannot train in a stack: %s", reason)


def prepare(
    config: Config, module: nn.Module | None = None, dataset: Dataset | tuple[Any, ...] | None = None
) -> tuple[Problem, Data]:
    """Load and partition the data. Check everything in a config that depends on the data or the model."""
    module = own_module(module)
    given = None if dataset is None else as_dataset(dataset)
    config = _with_objects(config, module, given)
    dataset = load(config.data) if given is None else given
    data = partition_data(config, dataset)
    problem = Problem(
        config=config,
        input_shape=tuple(dataset.train.inputs.shape[1:]),
        classes=dataset.classes,
        clients=len(data.partitions[0]),
        largest_client=max(int(parts.sizes.max()) for parts in data.partitions),
        own_module=module,
    )
    _ = problem.layout  # refuses a model without trainable parameters
    _try_model(problem, dataset)
    problem = replace(problem, no_stack=_no_stack(problem, dataset))
    check(problem)
    return problem, data


def _with_objects(config: Config, module: nn.Module | None, dataset: Dataset | None) -> Config:
    """Return the config with the names of the Python objects that replace its model and its data set."""
    own_data = None if dataset is not None and dataset.from_config else dataset
    recorded = config.objects or ObjectsConfig()
    if (recorded.module and module is None) or (recorded.dataset and own_data is None):
        what = " and ".join(name for name in (recorded.module, recorded.dataset) if name)
        raise ConfigError(f"the run used Python objects ({what}); resume it from Python: {recorded.call}")
    if module is None and own_data is None:
        return config
    changes: dict[str, Any] = {"objects": describe(module, own_data)}
    if module is not None:
        changes["model"] = config.model.model_copy(update={"name": type(module).__name__, "options": {}})
    if own_data is not None:
        changes["data"] = config.data.model_copy(update={"source": own_data.name})
    return config.model_copy(update=changes)


def partition_data(config: Config, dataset: Dataset) -> Data:
    """Split the samples among the clients: once, or per phase of block-cyclic data."""
    train, test, seed = dataset.train.targets, dataset.test.targets, config.seed
    if config.data.phases is None:
        parts = [partition(train, dataset.classes, config.data.partition, seed)]
        test_rows = [np.arange(len(test))]
    else:
        clients = config.data.partition.clients
        found = phases(train, test, dataset.classes, config.data.phases, clients, seed)
        parts, test_rows = [phase.train for phase in found], [phase.test for phase in found]
    if cast("Algorithm", config.algorithm).pooled:
        parts = [Partition(np.sort(part.indices), np.array([0, len(part.indices)])) for part in parts]
    return Data(dataset, tuple(parts), tuple(test_rows))


def check(problem: Problem) -> None:
    """Raise an error, before the run starts, if model, data, blocks, cohort and stack do not fit together."""
    config = problem.config
    if config.data.augment and len(problem.input_shape) != 3:
        raise ConfigError("data.augment needs images, but this data has none; remove data.augment")
    if config.analysis is not None and config.checkpoint.every == 0:
        raise ConfigError("[analysis] needs a checkpoint, but checkpoint.every = 0 writes none; set it to at least 1")
    if config.budget.simulated_seconds is not None and config.cohort.links is None:
        raise ConfigError("budget.simulated_seconds needs the clients' bandwidth; add a [cohort.links] table")
    gpu_here = config.engine == "local" and config.hosts.device == "gpu"
    if gpu_here and not torch.accelerator.is_available():
        raise ConfigError('hosts.device = "gpu" with engine = "local", but this machine has no GPU; set it to "cpu"')
    if config.local.precision == "bf16" and config.model.dtype == "float64":
        raise ConfigError('local.precision = "bf16" needs model.dtype = "float32"; change one of them')
    if (backend := config.local.compile) is not None and backend not in torch.compiler.list_backends(()):
        known = ", ".join(torch.compiler.list_backends())
        raise ConfigError(f'local.compile = "{backend}" is not a backend of torch.compile; use one of {known}')
    if config.checkpoint.address is not None:
        open_address(config.checkpoint.address)
    _ = problem.cohort_size, problem.stack, problem.loss, problem.uplinks
    if config.blocks.redivide_every is not None:
        recut(problem.layout, config.blocks, None, stream(0))
    _check_metrics(problem)
    _warn_about_shared(problem)


def _warn_about_shared(problem: Problem) -> None:
    """Warn if every client uploads most of the model because the last layer is most of it."""
    layout, shared = problem.layout, problem.config.blocks.shared
    share = layout.shared.size / layout.size
    if problem.algorithm.blockwise and shared in (None, "last") and share > 0.5:
        log.warning(
            "the shared block, %s, is %.0f %% of the model, and every client uploads it; set blocks.shared to smaller "
            'layers or to "none", or blocks.division = "equal" with a number of coordinates',
            *(", ".join(layout.shared.layers), 100 * share),
        )


def _try_model(problem: Problem, dataset: Dataset) -> None:
    """Raise an error if the model and the loss do not fit the data."""
    split = dataset.train.take(np.resize(np.arange(len(dataset.train)), 2))
    targets = torch.from_numpy(split.targets)
    targets[-1] = dataset.classes - 1  # the model needs an output for the last class
    inputs = normalise(torch.from_numpy(split.inputs), dataset, problem.dtype)
    bf16 = problem.config.local.precision == "bf16"
    names = MODELS.name_of(problem.config.model.name), LOSSES.name_of(problem.config.model.loss)
    try_out(problem.module().to(problem.dtype), problem.loss, (inputs, targets), dataset.classes, names, bf16)


def _check_metrics(problem: Problem) -> None:
    metrics = problem.config.evaluation.metrics
    if metrics:
        with torch.no_grad():
            module = problem.module().to(problem.dtype).eval()
            outputs = logits_of(module(torch.zeros((2, *problem.input_shape), dtype=problem.dtype)))
        Metrics(metrics).sums(outputs, torch.full((2,), problem.classes - 1))
