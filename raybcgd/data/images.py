"""Decode JPEG, PNG and other image files into one array of bytes."""

import io
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from raybcgd.errors import ConfigError, first_line

Bytes = npt.NDArray[np.uint8]

GREY_MODES = frozenset({"1", "L", "LA"})
COLOUR_MODES = frozenset({"RGB", "RGBA", "P", "CMYK", "YCbCr"})

# Smaller images spend most of their time in Python, where a second thread only adds contention.
# Per image, 1 and 2 threads on 2 cores: 120 and 185 us at 32 x 32, 240 and 180 us at 128 x 128.
THREADED_FROM_PIXELS = 64 * 64
CHUNK = 64


class Encoded(NamedTuple):
    """The bytes of an image file, and their origin for error messages."""

    data: bytes
    file: str
    row: int | None = None

    @property
    def name(self) -> str:
        """The origin as shown to the user."""
        return self.file if self.row is None else f"row {self.row} of {self.file}"


def stack(images: Iterable[Encoded], count: int, image_size: int | None = None) -> Bytes:
    """Decode `count` images into (count, channels, height, width): 1 channel if all are grey, else 3.

    `image_size` scales every image to a square of that side. Without it, all images must have the same size.
    """
    out: Bytes | None = None
    done = 0
    for first, block in decode_all(images, image_size):
        if out is None:
            out = _empty((count, *block.shape[1:]))
        _check_size(first, block.shape[:1:-1], out.shape[:1:-1])
        if block.shape[1] > out.shape[1]:
            out = np.repeat(out, 3, axis=1)  # the first colour images after grey ones
        room = max(count - done, 0)
        out[done : done + len(block)] = block[:room]  # grey images broadcast to three channels
        done += len(block)
    if out is None:
        raise ConfigError("data.root: there are no images to read; point it to a folder with images")
    if done != count:
        raise ConfigError(f"data.root: the files declare {count} images but hold {done}; fetch them again")
    return out


def _empty(shape: tuple[int, ...]) -> Bytes:
    try:
        return np.empty(shape, dtype=np.uint8)
    except (MemoryError, ValueError) as error:
        raise ConfigError(
            f"data.root: {shape[0]} images of {shape[3]} x {shape[2]} pixels do not fit in memory; "
            f"set a smaller data.image_size"
        ) from error


def same_channels(first: Bytes, second: Bytes) -> tuple[Bytes, Bytes]:
    """Expand grey images to three channels if the other stack has colour."""
    channels = max(first.shape[1], second.shape[1])
    wide = [s if s.shape[1] == channels else np.repeat(s, channels, axis=1) for s in (first, second)]
    return wide[0], wide[1]


def decode_all(images: Iterable[Encoded], image_size: int | None) -> Iterator[tuple[str, Bytes]]:
    """Yield blocks of (n, channels, height, width) in order, each with the name of its first image.

    Images of at least THREADED_FROM_PIXELS are decoded on all cores.
    """
    remaining = iter(images)
    chunks = iter(lambda: list(islice(remaining, CHUNK)), [])
    work = partial(_decode_chunk, image_size=image_size)
    for chunk in chunks:
        yield (first := work(chunk))
        threaded = first[1].shape[2] * first[1].shape[3] >= THREADED_FROM_PIXELS
        yield from _threaded(work, chunks) if threaded else map(work, chunks)


def decode(encoded: Encoded, image_size: int | None) -> Image.Image:
    """Decode one image to 8-bit grey or RGB."""
    try:
        image: Image.Image = Image.open(io.BytesIO(encoded.data))
        mode = image.mode
        if mode in GREY_MODES or mode in COLOUR_MODES:
            wanted = "L" if mode in GREY_MODES else "RGB"
            if mode != wanted:
                image = image.convert(wanted)
            if image_size is not None and image.size != (image_size, image_size):
                image = image.resize((image_size, image_size), Image.Resampling.BILINEAR)
            image.load()
            return image
    except Exception as error:  # bad bytes raise OSError, SyntaxError, struct.error, zlib.error and more
        # Pillow's own message shows the address of a buffer.
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else first_line(error)
        raise ConfigError(f"data.root: cannot decode {encoded.name} ({reason}); replace or remove it") from error
    raise ConfigError(f"data.root: {encoded.name} has pixels of mode {mode}; convert it to 8-bit grey or RGB")


def _decode_chunk(chunk: list[Encoded], image_size: int | None) -> tuple[str, Bytes]:
    """Decode images into one tall image and convert that to an array: converting each one costs 25 % of the time."""
    images = [decode(encoded, image_size) for encoded in chunk]
    mode = "RGB" if any(image.mode == "RGB" for image in images) else "L"
    width, height = images[0].size
    column = Image.new(mode, (width, height * len(images)))
    for k, (encoded, image) in enumerate(zip(chunk, images, strict=True)):
        _check_size(encoded.name, image.size, (width, height))
        column.paste(image, (0, k * height))
    pixels = np.asarray(column).reshape(len(images), height, width, -1)
    return chunk[0].name, pixels.transpose(0, 3, 1, 2)


def _check_size(name: str, size: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if size != expected:
        raise ConfigError(
            f"data.root: {name} is {size[0]} x {size[1]} pixels but the images before it are "
            f"{expected[0]} x {expected[1]}; set data.image_size to scale all images to one size"
        )


def _threaded(work: partial[tuple[str, Bytes]], chunks: Iterator[list[Encoded]]) -> Iterator[tuple[str, Bytes]]:
    """Decode chunks in parallel, a few ahead of the reader, to bound the memory."""
    workers = usable_cores()
    ahead: deque[Future[tuple[str, Bytes]]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool:
        try:
            for chunk in chunks:
                ahead.append(pool.submit(work, chunk))
                if len(ahead) > 2 * workers:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def usable_cores() -> int:
    """Return the number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
