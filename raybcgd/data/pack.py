"""Pack a folder of images into Parquet shards in the Hugging Face image layout."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from raybcgd.data.folders import Files, list_image_folder, read_files
from raybcgd.data.images import decode
from raybcgd.errors import ConfigError, first_line

ROWS_PER_GROUP = 1000

Progress = Callable[[int, int], None]
"""Called with the number of images done and the total."""


class Packed(NamedTuple):
    """Numbers of images and classes, and the files written."""

    train: int
    test: int
    classes: int
    files: list[Path]


def pack(folder: Path, out: Path, shard_size: int = 50_000, progress: Progress | None = None) -> Packed:
    """Write out/train-*.parquet and out/test-*.parquet with at most `shard_size` images per file.

    `folder` has the layout of `source = "image_folder"`. Image files are checked and stored unchanged, so
    `source = "parquet"` gives the same data. Files are written atomically.
    """
    try:
        return _pack(folder, out, shard_size, progress)
    except ConfigError as error:  # the checks of a run's data.root, which is not a setting here
        raise ConfigError(str(error).removeprefix("data.root: ")) from error


def _pack(folder: Path, out: Path, shard_size: int, progress: Progress | None) -> Packed:
    if shard_size < 1:
        raise ConfigError(f"shard size is {shard_size}; use at least 1 image per file")
    listing = list_image_folder(folder)
    if out.is_dir() and any(out.glob("*.parquet")):
        raise ConfigError(f"{out} already has Parquet files; choose another folder or remove them")
    schema = _schema(listing.names)
    total = len(listing.train.paths) + len(listing.test.paths)
    written: list[Path] = []
    done = 0

    def advance(images: int) -> None:
        nonlocal done
        done += images
        if progress is not None:
            progress(done, total)

    try:
        out.mkdir(parents=True, exist_ok=True)
        for split, files in (("train", listing.train), ("test", listing.test)):
            shards = -(-len(files.paths) // shard_size)
            for shard in range(shards):
                part = slice(shard * shard_size, (shard + 1) * shard_size)
                path = out / f"{split}-{shard:05d}-of-{shards:05d}.parquet"
                _write_shard(path, Files(files.paths[part], files.labels[part]), schema, folder, advance)
                written.append(path)
    except OSError as error:
        raise ConfigError(f"cannot write to {out} ({first_line(error)}); choose another folder") from error
    return Packed(len(listing.train.paths), len(listing.test.paths), len(listing.names), written)


def _write_shard(path: Path, files: Files, schema: Any, folder: Path, advance: Callable[[int], None]) -> None:
    unfinished = path.with_suffix(".unfinished")
    try:
        with pq.ParquetWriter(unfinished, schema, compression="none") as writer:  # images are already compressed
            for start in range(0, len(files.paths), ROWS_PER_GROUP):
                part = slice(start, start + ROWS_PER_GROUP)
                images = []
                for encoded in read_files(files.paths[part]):
                    decode(encoded, None)
                    name = Path(encoded.file).relative_to(folder).as_posix()
                    images.append({"bytes": encoded.data, "path": name})
                writer.write_table(pa.table([images, files.labels[part]], schema=schema))
                advance(len(images))
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _schema(names: list[str]) -> Any:
    """Return the columns, with the class names where the `datasets` library looks for them."""
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.schema([("image", image), ("label", pa.int64())], metadata=metadata)
