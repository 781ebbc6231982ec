"""`raybcgd data inspect` and `raybcgd data pack`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress
from rich.table import Table

from raybcgd.cli.shared import ConfigFile, Set, exits_cleanly, out, print_line
from raybcgd.config import load_config
from raybcgd.data.inspect import describe, describe_partition, label_counts
from raybcgd.data.pack import pack as pack_folder
from raybcgd.data.settings import PARTITIONS
from raybcgd.problem import load_data
from raybcgd.report.heat_map import draw_heat_map

data = typer.Typer(no_args_is_help=True, help="Inspect a data set, or pack images into Parquet files.")


@data.command()
@exits_cleanly
def inspect(
    config: ConfigFile,
    settings: Set = None,
    image: Annotated[
        Path | None, typer.Option("--image", "--picture", help="Also plot the labels per client to this PNG file.")
    ] = None,
) -> None:
    """Describe a config's data set and its split among the clients.

    The distance from iid compares the label shares of a client with those of all training samples: half the sum of the
    absolute differences (total variation), as a mean over the clients. It is divided by the largest possible distance,
    that of a client with only the rarest label: 0 is iid. If all labels are equally frequent, 1 is one label per
    client.
    """
    experiment, loaded = load_data(load_config(config, settings or ()))
    dataset = loaded.dataset
    lines = describe(dataset)
    for number, part in enumerate(loaded.partitions):
        prefix = f"phase {number}: " if len(loaded.partitions) > 1 else ""
        lines += [line._replace(what=prefix + line.what) for line in describe_partition(dataset, part)]
    table = Table(show_header=False)
    for line in lines:
        table.add_row(line.what, line.value)
    out.print(table)
    if image is not None:
        counts = label_counts(dataset.labels, dataset.label_count, loaded.partitions[0])
        kind = PARTITIONS.name_of(type(experiment.data.partition))
        if dataset.regression:
            draw_heat_map(counts, image, f"Targets per client: {dataset.name}, {kind}", "decile of the targets")
        else:
            draw_heat_map(counts, image, f"Labels per client: {dataset.name}, {kind}")
        print_line(f"image: {image}")


@data.command()
@exits_cleanly
def pack(
    folder: Annotated[Path, typer.Argument(help="Folder with train/CLASS/*.png and test/CLASS/*.png.")],
    out_folder: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the Parquet files.")],
    shard_size: Annotated[int, typer.Option(help="Maximum number of images per file.")] = 50_000,
) -> None:
    """Pack a folder of images into Parquet files, which load faster than single images."""
    with Progress(console=out, disable=not out.is_terminal) as bar:
        task = bar.add_task("packing", total=None)
        packed = pack_folder(
            folder, out_folder, shard_size, lambda done, total: bar.update(task, completed=done, total=total)
        )
    print_line(
        f"{packed.train:,} training and {packed.test:,} test images of {packed.classes} classes in "
        f"{len(packed.files)} files; use them with data.source=parquet and data.root={out_folder}"
    )
