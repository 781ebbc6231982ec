"""From a config to a problem and its data: load, partition, check."""

import logging
from dataclasses import replace
from typing import Any, cast

import numpy as np
from torch import nn

from raybcgd.algorithms.api import Algorithm
from raybcgd.config.objects import ObjectsConfig, describe
from raybcgd.config.schema import Config
from raybcgd.data.clients import Clients
from raybcgd.data.dataset import Dataset
from raybcgd.data.from_python import as_dataset
from raybcgd.data.partition import Natural, Partition, partition
from raybcgd.data.phases import phases
from raybcgd.data.settings import PARTITIONS, PartitionConfig
from raybcgd.data.sources import cut, load
from raybcgd.errors import ConfigError
from raybcgd.model.given import own_module
from raybcgd.problem.checks import check, no_stack, note, try_model
from raybcgd.problem.definition import Data, Problem
from raybcgd.problem.single_samples import check_single_samples

log = logging.getLogger(__name__)


def prepare(
    config: Config,
    module: nn.Module | None = None,
    dataset: Dataset | tuple[Any, ...] | None = None,
    partition: Any = None,
) -> tuple[Problem, Data]:
    """Load and partition the data. Check everything in a config that depends on the data or the model.

    `partition` replaces `data.partition`: see `Dataset.from_tensors`.
    """
    module = own_module(module)
    given = None if dataset is None else as_dataset(dataset).partitioned(partition)
    own_data = None if given is not None and given.from_config else given
    _check_objects(config.objects or ObjectsConfig(), module, own_data, partition)
    dataset = load(config.data, partition) if given is None else given
    dataset = cut(dataset, config.data) if own_data is not None else dataset
    config = _with_objects(config, module, own_data, None if partition is None else dataset.clients)
    config = _with_clients(config, dataset)
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
    try_model(problem, dataset)
    problem = replace(problem, no_stack=no_stack(problem, dataset))
    check(problem, dataset)
    check_single_samples(problem, data)
    return problem, data


def _check_objects(recorded: ObjectsConfig, module: nn.Module | None, dataset: Dataset | None, partition: Any) -> None:
    """Raise an error if a run that is resumed or analysed used Python objects that are missing now."""
    used = {recorded.module: module, recorded.dataset: dataset, recorded.partition: partition}
    if any(name is not None and given is None for name, given in used.items()):
        what = " and ".join(name for name in used if name is not None)
        raise ConfigError(
            f"the run used Python objects ({what}); pass them again: {recorded.arguments}; to resume it from Python, "
            f"use {recorded.call}"
        )


def _with_objects(config: Config, module: nn.Module | None, dataset: Dataset | None, clients: Clients | None) -> Config:
    """Return the config with the names of the Python objects that replace its model, data set and partition."""
    if module is None and dataset is None and clients is None:
        return config
    if config.objects is None:  # otherwise, it is the config of a run and has the objects' names
        _note_replaced(config, module, dataset, clients)
    data = config.data
    changes: dict[str, Any] = {"objects": describe(module, dataset, clients)}
    if module is not None:
        changes["model"] = config.model.model_copy(update={"name": type(module).__name__, "options": {}})
    if dataset is not None:
        data = data.model_copy(update={"source": dataset.name})
    if clients is not None:
        data = data.model_copy(update={"partition": Natural(samples_per_client=data.partition.samples_per_client)})
    return config.model_copy(update={**changes, "data": data})


def _note_replaced(config: Config, module: nn.Module | None, dataset: Dataset | None, clients: Clients | None) -> None:
    """Note which settings, if they are not at their defaults, have no effect because of Python objects."""
    model, data = config.model.model_fields_set, config.data
    partitioned = data.partition_is_set and not isinstance(data.partition, Natural)
    own_partition = partitioned and bool(data.partition.model_fields_set - {"samples_per_client"})
    replaced = {
        "model.name": ("module", module is not None and "name" in model),
        "model.options": ("module", module is not None and "options" in model),
        "data.source": ("dataset", dataset is not None and "source" in data.model_fields_set),
        "data.partition": ("partition", clients is not None and own_partition),
    }
    for setting, (argument, has_no_effect) in replaced.items():
        if has_no_effect:
            note(f"{setting} has no effect, because the argument {argument} replaces it; remove one of them")


def _with_clients(config: Config, dataset: Dataset) -> Config:
    """Return the config with its partition set: natural, if the data set has clients and no other partition is set."""
    chosen, own, phased = config.data.partition, dataset.clients, config.data.phases is not None
    if isinstance(chosen, Natural) and phased:
        raise ConfigError(
            "data.phases assigns the samples to clients itself; remove it, or remove what sets the clients: "
            'data.client_column, data.partition.kind = "natural" or, in Python, the argument partition'
        )
    if own is None or phased:
        return with_partition(config, chosen)
    if config.data.partition_is_set and not isinstance(chosen, Natural):
        kind = PARTITIONS.name_of(type(chosen))
        log.warning('note: data.partition.kind = "%s" replaces the %d clients of the data set', kind, len(own))
        return config
    if isinstance(chosen, Natural) and chosen.clients not in (0, len(own)):
        raise ConfigError(f"data.partition.clients = {chosen.clients}, but the data has {len(own)} clients; remove it")
    return with_partition(config, Natural(clients=len(own), samples_per_client=chosen.samples_per_client))


def with_partition(config: Config, partition: PartitionConfig) -> Config:
    """Return the config with a partition, which then counts as set."""
    return config.model_copy(update={"data": config.data.model_copy(update={"partition": partition})})


def load_data(config: Config) -> tuple[Config, Data]:
    """Load and partition the data without a model. Also return the config with the clients that were found."""
    dataset = load(config.data)
    config = _with_clients(config, dataset)
    return config, partition_data(config, dataset)


def partition_data(config: Config, dataset: Dataset) -> Data:
    """Split the samples among the clients: once, or per phase of block-cyclic data.

    If this replaces the data set's own clients, the returned data set has none, so that nothing shows their names.
    """
    train, test, seed = dataset.labels, dataset.test.targets, config.seed
    if config.data.phases is None:
        parts = [partition(train, dataset.label_count, config.data.partition, seed, dataset.clients)]
        test_rows = [np.arange(len(test))]
    else:
        if dataset.regression:
            raise ConfigError("data.phases needs labels, but the targets are floats (regression); remove it")
        clients = config.data.partition.clients
        found = phases(train, test, dataset.classes, config.data.phases, clients, seed)
        parts, test_rows = [phase.train for phase in found], [phase.test for phase in found]
    if cast("Algorithm", config.algorithm).pooled:
        parts = [Partition(np.sort(part.indices), np.array([0, len(part.indices)])) for part in parts]
    if dataset.clients is not None and not isinstance(config.data.partition, Natural):
        dataset = replace(dataset, clients=None)
    return Data(dataset, tuple(parts), tuple(test_rows))
