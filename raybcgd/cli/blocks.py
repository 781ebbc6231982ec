"""`raybcgd blocks`: how a model is divided into blocks, the size of an upload, and the device memory of a host."""

from pathlib import Path
from statistics import fmean
from typing import Annotated, cast

import torch
import typer
from rich.table import Table
from torch import nn

from raybcgd.algorithms.api import Algorithm
from raybcgd.algorithms.contract import title
from raybcgd.cli.shared import Set, exits_cleanly, out, print_line
from raybcgd.client.memory import predict
from raybcgd.config import Config, load_config, make_config
from raybcgd.config.files import override
from raybcgd.data.dataset import Dataset
from raybcgd.errors import ConfigError
from raybcgd.model.blocks import BlockLayout, divide
from raybcgd.model.division_table import Row, division_table, upload_saving
from raybcgd.model.divisions import DIVISIONS
from raybcgd.model.settings import MODELS
from raybcgd.model.zoo import build
from raybcgd.problem.prepare import load_data, prepare
from raybcgd.wire.codecs import Codec
from raybcgd.wire.upload import Wire

_WEIGHTS = "weights: entries of weight matrices and kernels, without biases and norm layers, as counted in the papers"


@exits_cleanly
def blocks(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="Experiment config (TOML).")] = None,
    model: Annotated[str | None, typer.Option(help="A model such as vgg19, instead of a config.")] = None,
    division: Annotated[
        str | None,
        typer.Option(help="layers, balanced, equal or a paper's division. Default: that of the config or the model."),
    ] = None,
    count: Annotated[int | None, typer.Option(help="Number of blocks.")] = None,
    classes: Annotated[
        int | None, typer.Option(min=2, help="With --model: number of classes. Default: 10, or 2 for sigmoid_erm.")
    ] = None,
    shape: Annotated[str, typer.Option(help="With --model: channels x height x width of a sample.")] = "3x32x32",
    memory: Annotated[
        bool, typer.Option("--memory", help="With a config: also predict the device memory of a client host.")
    ] = False,
    settings: Set = None,
) -> None:
    """Show how a model is divided into blocks: layers, parameters, bytes and share of the model."""
    if memory and config is None:
        raise ConfigError("--memory needs a config, because memory depends on the data and the method; pass one")
    if (config is None) == (model is None):
        raise ConfigError("raybcgd blocks takes either a config or --model; pass exactly one of them")
    changes = [f"blocks.division={division}"] if division else []
    changes += [f"blocks.count={count}"] if count is not None else []
    if config is not None:
        experiment = load_config(config, [*changes, *(settings or ())])
        found, data = load_data(experiment)
        dataset, clients = data.dataset, found.data.partition.clients
        unit = "tokens" if dataset.tokens else "features"
        _print_blocks(experiment, tuple(dataset.train.inputs.shape[1:]), dataset.classes, clients, unit)
        if memory:
            _print_memory(experiment, dataset)
        return
    if not changes and model in DIVISIONS:
        changes = [f"blocks.division={model}"]
    experiment = make_config(override({"model": {"name": model}}, [*changes, *(settings or ())]))
    _print_blocks(experiment, _parse_shape(shape), classes or (2 if model == "sigmoid_erm" else 10))


def _parse_shape(shape: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in shape.lower().split("x"))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise ConfigError(f"--shape {shape}: write it as channels x height x width, such as 3x32x32")
    return numbers


def _print_blocks(
    config: Config, shape: tuple[int, ...], classes: int, clients: int | None = None, unit: str = "features"
) -> None:
    module = build(config.model, shape, classes, config.seed)
    layout = divide(module, config.blocks, clients)
    rows = division_table(layout, config.model.dtype)
    name, size = MODELS.name_of(config.model.name), "x".join(map(str, shape)) + (f" {unit}" if len(shape) == 1 else "")
    task = f"{classes} classes" if classes else "for regression"
    title = f"{name} on {size}, {task}: d = {layout.size:,}, {len(layout.blocks)} blocks"
    table = Table(title=title, title_justify="left", caption=_WEIGHTS, caption_justify="left")
    table.add_column("block")
    table.add_column("layers", overflow="fold")
    for heading in ("parameters", "bytes", "share of d", "weights"):
        table.add_column(heading, justify="right")
    for row in rows:
        numbers = (f"{row.parameters:,}", f"{row.bytes:,}", f"{row.share:.1%}", f"{row.weights:,}")
        table.add_row(row.block, _layer_names(row), *numbers)
    out.print(table)
    trained = sum(row.parameters for row in rows)
    if trained < layout.size:
        buffers = f"{layout.size - trained:,} numbers in buffers, such as the statistics of batch norm"
        print_line(f"d = {layout.size:,} counts {trained:,} parameters and {buffers}.")
    print_line(_upload(config, module, layout))


def _upload(config: Config, module: nn.Module, layout: BlockLayout) -> str:
    """Return what a client uploads per round and, if the method has no blocks, what it would upload with FedBCGD."""
    saving = upload_saving(module, layout, config.model.dtype)
    whole, method = saving.whole_model_bytes, cast("Algorithm", config.algorithm)
    wire = Wire(method, layout, cast("Codec", config.wire), getattr(torch, config.model.dtype))
    blocks = range(len(layout.blocks)) if method.blockwise else (None,)
    sent = fmean(wire.upload(block).bytes for block in blocks)
    frozen = f" ({saving.frozen:,} more parameters are frozen)" if saving.frozen else ""
    if method.blockwise:
        return f"A client uploads {sent:,.0f} bytes per round on average, {_against(sent, whole)}{frozen}."
    with_blocks = f"With FedBCGD and no codec, it uploads {saving.upload_bytes:,.0f} bytes on average."
    return (
        f"{title(type(method))} does not use the blocks: a client uploads {sent:,.0f} bytes per round, "
        f"{_against(sent, whole)}{frozen}. {with_blocks}"
    )


def _against(sent: float, whole: int) -> str:
    if sent == whole:
        return "as many as the whole model"
    factor = f"{whole / sent:.1f} times less than" if sent < whole else f"{sent / whole:.1f} times"
    return f"{factor} the whole model"


def _print_memory(config: Config, dataset: Dataset) -> None:
    problem, data = prepare(config, dataset=dataset)
    found = predict(problem, data)
    count = max(problem.stack, 1)
    clients = "1 client" if count == 1 else f"{count} clients"
    table = Table(title=f"Device memory per host, {clients} at a time", title_justify="left")
    table.add_column("part")
    table.add_column("MB", justify="right")
    for part, size in (
        ("training samples that stay on the device", found.samples),
        ("client states that stay on the device", found.states),
        ("broadcast", found.broadcast),
        ("training, sums and evaluation, at their peak", found.work),
        ("total", found.total),
    ):
        table.add_row(part, f"{size / 1e6:,.1f}")
    out.print(table)
    print_line(
        "This counts tensors. Add about 500 MB per host for CUDA itself, and 20 % for memory that torch caches, then "
        "set hosts.num_gpus to the result divided by the memory of a GPU."
    )


def _layer_names(row: Row) -> str:
    names = row.layers
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} … {names[-1]} ({len(names)} layers)"
