"""`raybcgd data inspect` and `raybcgd data pack`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress
from rich.table import Table

from raybcgd.cli.shared import ConfigFile, Set, ends_clearly, out
from raybcgd.config import load_config
from raybcgd.data.inspect import describe, describe_partition, label_counts
from raybcgd.data.pack import pack as pack_folder
from raybcgd.problem import prepare
from raybcgd.report.heat_map import draw_heat_map

data = typer.Typer(no_args_is_help=True, help="Look at data, or pack pictures into Parquet files.")


@data.command()
@ends_clearly
def inspect(
    config: ConfigFile,
    settings: Set = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw who has which labels, as a PNG.")] = None,
) -> None:
    """Describe the data of a config, and how it is dealt to the clients."""
    experiment = load_config(config, settings or ())
    _, loaded = prepare(experiment)
    dataset, targets = loaded.dataset, loaded.dataset.train.targets
    lines = describe(dataset)
    for number, part in enumerate(loaded.partitions):
        prefix = f"phase {number}: " if len(loaded.partitions) > 1 else ""
        lines += [line._replace(what=prefix + line.what) for line in describe_partition(targets, dataset.classes, part)]
    table = Table(show_header=False)
    for line in lines:
        table.add_row(line.what, line.value)
    out.print(table)
    if picture is not None:
        counts = label_counts(targets, dataset.classes, loaded.partitions[0])
        draw_heat_map(counts, picture, f"Labels by client: {dataset.name}, {experiment.data.partition.kind}")
        out.print(f"drawn: {picture}", highlight=False, soft_wrap=True)


@data.command()
@ends_clearly
def pack(
    folder: Annotated[Path, typer.Argument(help="Pictures as train/CLASS/*.png and test/CLASS/*.png.")],
    out_folder: Annotated[Path, typer.Argument(metavar="OUT", help="Where the Parquet files go.")],
    shard_size: Annotated[int, typer.Option(help="The most pictures in a file.")] = 50_000,
) -> None:
    """Pack a folder of pictures into Parquet files that load in one go."""
    with Progress(console=out, disable=not out.is_terminal) as bar:
        task = bar.add_task("packing", total=None)
        packed = pack_folder(
            folder, out_folder, shard_size, lambda done, total: bar.update(task, completed=done, total=total)
        )
    out.print(
        f"{packed.train:,} train and {packed.test:,} test pictures of {packed.classes} classes in {len(packed.files)} "
        f"files; use them with data.source=parquet and data.root={out_folder}",
        highlight=False,
        soft_wrap=True,
    )
