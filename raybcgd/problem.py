"""What is trained on what: all that the server and every host derive alike from a config and the user's objects."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from raybcgd.client.states import open_address
from raybcgd.config import Config
from raybcgd.data.dataset import Dataset
from raybcgd.data.partition import Partition, partition
from raybcgd.data.phases import phases
from raybcgd.data.sources import load
from raybcgd.errors import ConfigError
from raybcgd.model.blocks import BlockLayout, divide, layers_of, recut
from raybcgd.model.zoo import build, loss_function
from raybcgd.plan.links import uplinks
from raybcgd.randomness import stream
from raybcgd.wire.upload import Wire

_STACK = 64
_STACKED_PARAMETERS = 200_000


@dataclass(frozen=True)
class Data:
    """The data set and who holds which of its samples. Hosts read one copy a node from the object store."""

    dataset: Dataset
    partitions: tuple[Partition, ...]
    """The clients' samples, for every phase of block-cyclic data; one where there are no phases."""
    test_rows: tuple[np.ndarray, ...]
    """The test samples that each phase's model is judged on."""


@dataclass(frozen=True)
class Problem:
    """The light part of an experiment, which travels to every host: the config, and how to make the model."""

    config: Config
    input_shape: tuple[int, ...]
    classes: int
    clients: int
    largest_client: int
    """The samples of the largest client."""
    own_module: nn.Module | None = None
    """The user's module, where one was passed as an object."""

    def module(self) -> nn.Module:
        """A new module with the initial parameters."""
        return copy.deepcopy(self._initial)

    @cached_property
    def _initial(self) -> nn.Module:
        if self.own_module is not None:
            return self.own_module
        return build(self.config.model, self.input_shape, self.classes, self.config.seed)

    def __getstate__(self) -> dict[str, object]:
        """What travels is the recipe; what was cooked from it stays."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.config.model.dtype == "float64" else torch.float32

    @cached_property
    def loss(self) -> Callable[..., Tensor]:
        return loss_function(self.config.model)

    @cached_property
    def layout(self) -> BlockLayout:
        return divide(self.module(), self.config.blocks)

    @cached_property
    def wire(self) -> Wire:
        return self.wire_at(self.layout.edges)

    def wire_at(self, edges: tuple[int, ...] | None) -> Wire:
        """The wire format under other edges between the blocks; None for those of the config."""
        if edges is None:
            return self.wire
        return Wire(self.config.algorithm, self.layout.with_edges(edges), self.config.wire, self.dtype)

    @cached_property
    def uplinks(self) -> np.ndarray | None:
        """The clients' links, in bytes a second; None where they are not known, or where there are no clients."""
        links = self.config.cohort.links
        if links is None or self.config.algorithm.pooled:
            return None
        return uplinks(links, self.clients, self.config.seed)

    @cached_property
    def num_blocks(self) -> int:
        """N."""
        return len(self.layout.blocks)

    @cached_property
    def cohort_size(self) -> int:
        """S, the clients of a round."""
        if self.config.algorithm.pooled:
            return 1
        return self.config.cohort.size(self.num_blocks, self.clients, self.config.algorithm.blockwise)

    @cached_property
    def stack(self) -> int:
        """How many clients are trained at once; 0 for one by one."""
        wanted = self.config.local.stack
        module = self.module()
        reason = _not_stackable(module)
        if wanted == "auto":
            convolutions = any(isinstance(child, nn.modules.conv._ConvNd) for child in module.modules())
            small = self.layout.size <= _STACKED_PARAMETERS
            return _STACK if reason is None and small and not convolutions else 0
        if wanted and reason is not None:
            raise ConfigError(f"local.stack = {wanted} cannot be used with this model: {reason}; set local.stack = 0")
        return wanted

    @cached_property
    def keeps_state(self) -> bool:
        """Whether clients keep anything between rounds."""
        algorithm = self.config.algorithm
        return self.config.wire.remembers or bool(algorithm.client_init(torch.zeros(1)))

    @cached_property
    def state_bytes(self) -> int:
        """What a client keeps between rounds."""
        vectors = self.config.algorithm.client_init(torch.zeros(self.layout.size, dtype=self.dtype))
        errors = self.wire.no_errors().values()
        return sum(int(v.numel() * v.element_size()) for v in vectors) + sum(int(e.nbytes) for e in errors)


def _not_stackable(module: nn.Module) -> str | None:
    if any(not entry.trained for layer in layers_of(module) for entry in layer.entries):
        return "it has buffers that training changes"
    for child in module.modules():
        if isinstance(child, nn.modules.dropout._DropoutNd) or "StochasticDepth" in type(child).__name__:
            return "it draws random numbers in its forward pass"
    return None


def prepare(config: Config, module: nn.Module | None = None, dataset: Dataset | None = None) -> tuple[Problem, Data]:
    """Load and divide the data, and check everything about a config that needs data or model to be checked."""
    if dataset is None:
        dataset = load(config.data)
    data = divide_data(config, dataset)
    problem = Problem(
        config=config,
        input_shape=tuple(dataset.train.inputs.shape[1:]),
        classes=dataset.classes,
        clients=len(data.partitions[0]),
        largest_client=max(int(parts.sizes.max()) for parts in data.partitions),
        own_module=module,
    )
    check(problem)
    return problem, data


def divide_data(config: Config, dataset: Dataset) -> Data:
    """Deal the samples to the clients: once, or in every phase of block-cyclic data."""
    train, test, seed = dataset.train.targets, dataset.test.targets, config.seed
    if config.data.phases is None:
        parts = [partition(train, dataset.classes, config.data.partition, seed)]
        test_rows = [np.arange(len(test))]
    else:
        clients = config.data.partition.clients
        found = phases(train, test, dataset.classes, config.data.phases, clients, seed)
        parts, test_rows = [phase.train for phase in found], [phase.test for phase in found]
    if config.algorithm.pooled:
        parts = [Partition(np.sort(part.indices), np.array([0, len(part.indices)])) for part in parts]
    return Data(dataset, tuple(parts), tuple(test_rows))


def check(problem: Problem) -> None:
    """Find out now, rather than in a host, that model, blocks, cohort and stack fit together."""
    if problem.config.data.augment and len(problem.input_shape) != 3:
        raise ConfigError("data.augment needs images, and this data has none; leave it out")
    if problem.config.analysis is not None and problem.config.checkpoint.every == 0:
        raise ConfigError("[analysis] looks at the last checkpoint, and checkpoint.every = 0 makes none; raise it")
    gpu_here = problem.config.engine == "local" and problem.config.hosts.device == "gpu"
    if gpu_here and not torch.accelerator.is_available():
        raise ConfigError('hosts.device = "gpu" with engine = "local", but this machine has none; set it to "cpu"')
    if problem.config.checkpoint.address is not None:
        open_address(problem.config.checkpoint.address)
    module = problem.module()
    _ = problem.cohort_size, problem.stack, problem.loss, problem.uplinks
    if problem.config.blocks.redivide_every is not None:
        recut(problem.layout, problem.config.blocks, None, stream(0))
    probe = torch.zeros((2, *problem.input_shape), dtype=problem.dtype)
    try:
        with torch.no_grad():
            outputs = module.to(problem.dtype).eval()(probe)
    except Exception as error:
        shape = "x".join(str(n) for n in problem.input_shape)
        raise ConfigError(
            f'model.name = "{problem.config.model.name}" cannot take inputs of {shape}: {_reason(error)}; '
            "choose another model or set model.options"
        ) from None
    finally:
        module.train()
    try:
        problem.loss(outputs, torch.full((2,), problem.classes - 1))
    except Exception as error:
        raise ConfigError(
            f'model.loss = "{problem.config.model.loss}" cannot judge outputs of {tuple(outputs.shape)[1:]} a sample '
            f"for {problem.classes} classes: {_reason(error)}; choose another loss, or a model with other outputs"
        ) from None


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".")
