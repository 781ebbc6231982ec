"""`raybcgd plan`: how a model is divided into blocks, and what an upload costs."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from raybcgd.cli.shared import Set, ends_clearly, out
from raybcgd.config import Config, load_config, make_config
from raybcgd.config.files import override
from raybcgd.data.sources import load
from raybcgd.errors import ConfigError
from raybcgd.model.blocks import divide
from raybcgd.model.division_table import Row, division_table, upload_saving
from raybcgd.model.divisions import DIVISIONS
from raybcgd.model.zoo import build


@ends_clearly
def plan(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="The experiment as a TOML file.")] = None,
    model: Annotated[str | None, typer.Option(help="A model in place of a config, such as vgg19.")] = None,
    division: Annotated[
        str | None,
        typer.Option(help="layers, balanced, equal or a paper's division; the model's own where it has one."),
    ] = None,
    count: Annotated[int | None, typer.Option(help="The number of blocks.")] = None,
    classes: Annotated[int, typer.Option(min=2, help="With --model: the number of classes.")] = 10,
    shape: Annotated[str, typer.Option(help="With --model: channels x height x width of a sample.")] = "3x32x32",
    settings: Set = None,
) -> None:
    """Print the division of a model into blocks: layers, parameters, bytes, share of d."""
    if (config is None) == (model is None):
        raise ConfigError("give either a config or --model")
    blocks = [f"blocks.division={division}"] if division else []
    blocks += [f"blocks.count={count}"] if count is not None else []
    if config is not None:
        experiment = load_config(config, [*blocks, *(settings or ())])
        dataset = load(experiment.data)
        _show(experiment, tuple(dataset.train.inputs.shape[1:]), dataset.classes)
        return
    if not blocks and model in DIVISIONS:
        blocks = [f"blocks.division={model}"]
    experiment = make_config(override({"model": {"name": model}}, [*blocks, *(settings or ())]))
    _show(experiment, _numbers(shape), classes)


def _numbers(shape: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in shape.lower().split("x"))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise ConfigError(f"--shape {shape}: write it as channels x height x width, such as 3x32x32")
    return numbers


def _show(config: Config, shape: tuple[int, ...], classes: int) -> None:
    module = build(config.model, shape, classes, config.seed)
    layout = divide(module, config.blocks)
    rows = division_table(layout, config.model.dtype)
    saving = upload_saving(module, layout, config.model.dtype)
    size = "x".join(map(str, shape))
    table = Table(
        title=f"{config.model.name} on {size}, {classes} classes: d = {layout.size:,}, {len(layout.blocks)} blocks",
        title_justify="left",
    )
    table.add_column("block")
    table.add_column("layers", overflow="fold")
    for heading in ("parameters", "bytes", "share of d", "weights"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row.block, _layers(row), f"{row.parameters:,}", f"{row.bytes:,}", f"{row.share:.1%}", f"{row.weights:,}"
        )
    out.print(table)
    frozen = f" ({saving.frozen:,} more parameters are frozen)" if saving.frozen else ""
    out.print(
        f"A client uploads {saving.upload_bytes:,.0f} bytes a round on average, {saving.factor:.1f} times less than "
        f"the whole model{frozen}.",
        highlight=False,
        soft_wrap=True,
    )


def _layers(row: Row) -> str:
    names = row.layers
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} … {names[-1]} ({len(names)} layers)"
