"""Pack a folder of images into Parquet shards in the Hugging Face image layout."""

import json
from collections.abc import Callable, Iterator
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
    """The numbers of images and classes, and the files written."""

    train: int
    test: int
    classes: int
    files: list[Path]


def pack(folder: Path, out: Path, shard_size: int = 50_000, progress: Progress | None = None) -> Packed:
    """Write out/train-*.parquet and out/test-*.parquet with at most `shard_size` images per file.

    `folder` has the layout of `source = "image_folder"`. Image files are checked and stored unchanged, so
    `source = "parquet"` gives the same data. Files are written atomically.
    """
    if shard_size < 1:
        raise ConfigError(f"shard size is {shard_size}; use at least 1 image per file")
    if any(out.glob("*.parquet")):
        raise ConfigError(f"{out} already has Parquet files; choose another folder or remove them")
    try:
        names, train, test = list_image_folder(folder)
        out.mkdir(parents=True, exist_ok=True)
        written: list[Path] = []
        done = 0
        for split, files in (("train", train), ("test", test)):
            starts = range(0, len(files), shard_size)
            for number, start in enumerate(starts):
                path = out / f"{split}-{number:05d}-of-{len(starts):05d}.parquet"
                for images in _write_shard(path, files[start : start + shard_size], _schema(names), folder):
                    done += images
                    if progress is not None:
                        progress(done, len(train) + len(test))
                written.append(path)
    except ConfigError as error:  # these checks name data.root, which is not a setting of this command
        raise ConfigError(str(error).removeprefix("data.root: ")) from error
    except OSError as error:
        raise ConfigError(f"cannot pack into {out} ({first_line(error)}); choose another folder") from error
    return Packed(len(train), len(test), len(names), written)


def _write_shard(path: Path, files: Files, schema: Any, folder: Path) -> Iterator[int]:
    """Write a file, and yield the number of images in each row group."""
    unfinished = path.with_suffix(".unfinished")
    try:
        with pq.ParquetWriter(unfinished, schema, compression="none") as writer:  # images are already compressed
            for start in range(0, len(files), ROWS_PER_GROUP):
                group = files[start : start + ROWS_PER_GROUP]
                images = []
                for encoded in read_files(group):
                    decode(encoded)
                    images.append({"bytes": encoded.data, "path": Path(encoded.name).relative_to(folder).as_posix()})
                writer.write_table(pa.table([images, [label for _, label in group]], schema=schema))
                yield len(group)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _schema(names: list[str]) -> Any:
    """Return the columns, with the class names where the `datasets` library looks for them."""
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.schema([("image", image), ("label", pa.int64())], metadata=metadata)
