"""Decode JPEG, PNG and other image files into one array of bytes."""

import io
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from raybcgd.data.dataset import Dataset, Labels
from raybcgd.errors import ConfigError, first_line

Bytes = npt.NDArray[np.uint8]

MODES = {"1": "L", "L": "L", "LA": "L", **dict.fromkeys(("RGB", "RGBA", "P", "CMYK", "YCbCr"), "RGB")}
"""Pillow's modes, and the mode to which each is converted."""

# Decoding smaller images spends most of its time in Python, where a second thread only adds contention.
# Time per image with 1 and 2 threads on 2 cores: 120 and 185 us at 32 x 32, 240 and 180 us at 128 x 128.
THREADED_FROM_PIXELS = 64 * 64
CHUNK = 64


class Encoded(NamedTuple):
    """The bytes of an image file, and their origin for error messages."""

    data: bytes
    name: str


class EncodedSplit(NamedTuple):
    """The image files of a split, read one at a time, and their labels."""

    images: Iterable[Encoded]
    labels: Labels


def decode_dataset(
    name: str, train: EncodedSplit, test: EncodedSplit, image_size: int | None, classes: int | None
) -> Dataset:
    """Decode both splits. Grey images get three channels if the other split has colour."""
    stacks = [stack(split.images, len(split.labels), image_size) for split in (train, test)]
    channels = max(images.shape[1] for images in stacks)
    inputs = [s if s.shape[1] == channels else np.repeat(s, channels, axis=1) for s in stacks]
    return Dataset.from_tensors(inputs[0], train.labels, inputs[1], test.labels, classes=classes, name=name)


def stack(images: Iterable[Encoded], count: int, image_size: int | None = None) -> Bytes:
    """Decode `count` images into (count, channels, height, width): 1 channel if all are grey, else 3.

    `image_size` scales every image to a square of that side. Without it, all images must have the same size. Images of
    at least THREADED_FROM_PIXELS are decoded on all cores.
    """
    remaining = iter(images)
    first = next(remaining, None)
    if first is None:
        raise ConfigError("data.root: there are no images to read; point it to a folder with images")
    image = decode(first, image_size)
    width, height = image.size
    try:
        out: Bytes = np.empty((count, len(image.getbands()), height, width), dtype=np.uint8)
    except (MemoryError, ValueError) as error:
        problem = f"{count} images of {width} x {height} pixels do not fit in memory"
        raise ConfigError(f"data.root: {problem}; set a smaller data.image_size") from error

    remaining = chain([first], remaining)
    chunks = iter(lambda: list(islice(remaining, CHUNK)), [])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = cores if width * height >= THREADED_FROM_PIXELS else 1
    done = 0
    with ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool:
        while ahead := list(islice(chunks, 2 * workers)):  # a few at a time, to limit the memory
            for block in pool.map(partial(_decode_chunk, image_size=image_size, size=image.size), ahead):
                if block.shape[1] > out.shape[1]:
                    out = np.repeat(out, 3, axis=1)  # the first colour images after grey ones
                done += len(block)
                if done <= count:
                    out[done - len(block) : done] = block  # grey images broadcast to three channels
    if done != count:
        raise ConfigError(f"data.root: the files declare {count} images but contain {done}; fetch them again")
    return out


def decode(encoded: Encoded, image_size: int | None = None) -> Image.Image:
    """Decode one image to 8-bit grey or RGB."""
    try:
        image: Image.Image = Image.open(io.BytesIO(encoded.data))
        if image.mode not in MODES:
            raise ValueError(f"pixels of mode {image.mode}")
        image = image.convert(MODES[image.mode])
        return image if image_size is None else image.resize((image_size, image_size), Image.Resampling.BILINEAR)
    except Exception as error:  # bad bytes raise OSError, SyntaxError, struct.error, zlib.error and more
        # Pillow's own message contains the address of a buffer.
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else first_line(error)
        fix = "replace it with an 8-bit grey or RGB image, or remove it"
        raise ConfigError(f"data.root: cannot decode {encoded.name} ({reason}); {fix}") from error


def _decode_chunk(chunk: list[Encoded], image_size: int | None, size: tuple[int, int]) -> Bytes:
    """Decode images into one tall image and convert that to an array: one by one, conversion took 25 % of the time."""
    images = [decode(encoded, image_size) for encoded in chunk]
    width, height = size
    mode = "RGB" if any(image.mode == "RGB" for image in images) else "L"
    column = Image.new(mode, (width, height * len(images)))
    for k, (encoded, image) in enumerate(zip(chunk, images, strict=True)):
        if image.size != size:
            raise ConfigError(f"data.root: {encoded.name} has size {image.size}, not {size}; set data.image_size")
        column.paste(image, (0, k * height))
    return np.asarray(column).reshape(len(images), height, width, -1).transpose(0, 3, 1, 2)
