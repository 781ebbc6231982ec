"""A folder of pictures to Parquet shards in the Hugging Face image layout, which load in one go."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from raybcgd.data.folders import Files, encoded, list_image_folder
from raybcgd.data.pictures import decode, one_line
from raybcgd.errors import ConfigError

ROWS_A_GROUP = 1000

Progress = Callable[[int, int], None]
"""Called with the pictures done and the pictures in all."""


class Packed(NamedTuple):
    """What was written."""

    train: int
    test: int
    classes: int
    files: list[Path]


def pack(folder: Path, out: Path, shard_size: int = 50_000, progress: Progress | None = None) -> Packed:
    """Write out/train-*.parquet and out/test-*.parquet with at most `shard_size` pictures a file.

    `folder` is as for the source image_folder. The picture files go in unchanged, after a check that they can be
    decoded, so nothing is lost and `source = "parquet"` gives the same data as `source = "image_folder"`. A file
    appears under its name only when it is complete.
    """
    try:
        return _pack(folder, out, shard_size, progress)
    except ConfigError as error:  # the same checks as when a run reads the folder, but here it is not data.root
        raise ConfigError(str(error).removeprefix("data.root: ")) from error


def _pack(folder: Path, out: Path, shard_size: int, progress: Progress | None) -> Packed:
    if shard_size < 1:
        raise ConfigError(f"shard size is {shard_size}; give at least 1 picture a file")
    listing = list_image_folder(folder)
    if out.is_dir() and any(out.glob("*.parquet")):
        raise ConfigError(f"{out} already has Parquet files; choose another folder or remove them")
    schema = _schema(listing.names)
    total = len(listing.train.paths) + len(listing.test.paths)
    written: list[Path] = []
    done = 0
    try:
        out.mkdir(parents=True, exist_ok=True)
        for split, files in (("train", listing.train), ("test", listing.test)):
            shards = -(-len(files.paths) // shard_size)
            for shard in range(shards):
                part = slice(shard * shard_size, (shard + 1) * shard_size)
                path = out / f"{split}-{shard:05d}-of-{shards:05d}.parquet"
                done = _write(path, Files(files.paths[part], files.labels[part]), schema, folder, done, total, progress)
                written.append(path)
    except OSError as error:
        raise ConfigError(f"cannot write to {out} ({one_line(error)}); choose another folder") from error
    return Packed(len(listing.train.paths), len(listing.test.paths), len(listing.names), written)


def _write(
    path: Path, files: Files, schema: Any, folder: Path, done: int, total: int, progress: Progress | None
) -> int:
    """One shard, in groups of a thousand pictures; how many pictures are done after it."""
    unfinished = path.with_suffix(".unfinished")
    try:
        with pq.ParquetWriter(unfinished, schema, compression="none") as writer:  # pictures are compressed already
            for start in range(0, len(files.paths), ROWS_A_GROUP):
                part = slice(start, start + ROWS_A_GROUP)
                images = []
                for picture in encoded(files.paths[part]):
                    decode(picture, None)
                    name = Path(picture.file).relative_to(folder).as_posix()
                    images.append({"bytes": picture.data, "path": name})
                writer.write_table(pa.table([images, files.labels[part]], schema=schema))
                done += len(images)
                if progress is not None:
                    progress(done, total)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return done


def _schema(names: list[str]) -> Any:
    """The columns, and the class names where the `datasets` library looks for them."""
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.schema([("image", image), ("label", pa.int64())], metadata=metadata)
