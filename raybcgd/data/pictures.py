"""JPEG, PNG and other picture files to one array of bytes."""

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

from raybcgd.errors import ConfigError

Bytes = npt.NDArray[np.uint8]

GREY_MODES = frozenset({"1", "L", "LA"})
COLOUR_MODES = frozenset({"RGB", "RGBA", "P", "CMYK", "YCbCr"})

# Measured on 2 cores: a smaller picture spends its time in Python, where a second thread only gets in the way
# (32 x 32: 120 us alone, 185 us with two threads; 128 x 128: 240 and 180).
THREADED_FROM_PIXELS = 64 * 64
CHUNK = 64


class Encoded(NamedTuple):
    """The bytes of a picture file, and where they are from, for error messages."""

    data: bytes
    file: str
    row: int | None = None

    @property
    def name(self) -> str:
        """How to speak of it to the user."""
        return self.file if self.row is None else f"row {self.row} of {self.file}"


def one_line(error: BaseException) -> str:
    """The first line of what another library says, for an error message of ours."""
    if isinstance(error, UnidentifiedImageError):
        return "not a picture"  # Pillow's own text is the address of a buffer
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def stack(pictures: Iterable[Encoded], count: int, image_size: int | None = None) -> Bytes:
    """Decode `count` pictures into (count, channels, height, width): 1 channel if all are grey, else 3.

    With `image_size` every picture is scaled to that many pixels a side; without, all must have one size.
    """
    out: Bytes | None = None
    done = 0
    for first, block in decode_all(pictures, image_size):
        if out is None:
            out = _empty((count, *block.shape[1:]))
        _same_size(first, block.shape[:1:-1], out.shape[:1:-1])
        if block.shape[1] > out.shape[1]:
            out = np.repeat(out, 3, axis=1)  # the first pictures in colour after grey ones
        room = max(count - done, 0)
        out[done : done + len(block)] = block[:room]  # grey among coloured ones is broadcast to three channels
        done += len(block)
    if out is None:
        raise ConfigError("data.root: there are no pictures to read; point it to a folder that has some")
    if done != count:
        raise ConfigError(f"data.root: the files say that they hold {count} pictures but do not; fetch them again")
    return out


def _empty(shape: tuple[int, ...]) -> Bytes:
    try:
        return np.empty(shape, dtype=np.uint8)
    except (MemoryError, ValueError) as error:
        raise ConfigError(
            f"data.root: {shape[0]} pictures of {shape[3]} x {shape[2]} pixels do not fit in memory; "
            f"set a smaller data.image_size"
        ) from error


def same_channels(first: Bytes, second: Bytes) -> tuple[Bytes, Bytes]:
    """Both stacks with three channels if one of them has colour."""
    channels = max(first.shape[1], second.shape[1])
    wide = [s if s.shape[1] == channels else np.repeat(s, channels, axis=1) for s in (first, second)]
    return wide[0], wide[1]


def decode_all(pictures: Iterable[Encoded], image_size: int | None) -> Iterator[tuple[str, Bytes]]:
    """Blocks of (n, channels, height, width) in order, each with the name of its first picture.

    All cores decode when the pictures are large enough to gain from it.
    """
    waiting = iter(pictures)
    chunks = iter(lambda: list(islice(waiting, CHUNK)), [])
    work = partial(_decode_chunk, image_size=image_size)
    for chunk in chunks:
        yield (first := work(chunk))
        threaded = first[1].shape[2] * first[1].shape[3] >= THREADED_FROM_PIXELS
        yield from _threaded(work, chunks) if threaded else map(work, chunks)


def decode(picture: Encoded, image_size: int | None) -> Image.Image:
    """One picture as 8-bit grey or RGB, its pixels in memory."""
    try:
        image: Image.Image = Image.open(io.BytesIO(picture.data))
        mode = image.mode
        if mode in GREY_MODES or mode in COLOUR_MODES:
            wanted = "L" if mode in GREY_MODES else "RGB"
            if mode != wanted:
                image = image.convert(wanted)
            if image_size is not None and image.size != (image_size, image_size):
                image = image.resize((image_size, image_size), Image.Resampling.BILINEAR)
            image.load()
            return image
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, zlib.error and more on bad bytes
        raise ConfigError(
            f"data.root: cannot decode {picture.name} ({one_line(error)}); replace or remove it"
        ) from error
    raise ConfigError(f"data.root: {picture.name} has pixels of mode {mode}; convert it to 8-bit grey or RGB")


def _decode_chunk(chunk: list[Encoded], image_size: int | None) -> tuple[str, Bytes]:
    """Paste the pictures one below the other and convert once: conversions one by one cost a quarter of the time."""
    images = [decode(picture, image_size) for picture in chunk]
    mode = "RGB" if any(image.mode == "RGB" for image in images) else "L"
    width, height = images[0].size
    column = Image.new(mode, (width, height * len(images)))
    for k, (picture, image) in enumerate(zip(chunk, images, strict=True)):
        _same_size(picture.name, image.size, (width, height))
        column.paste(image, (0, k * height))
    pixels = np.asarray(column).reshape(len(images), height, width, -1)
    return chunk[0].name, pixels.transpose(0, 3, 1, 2)


def _same_size(name: str, size: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if size != expected:
        raise ConfigError(
            f"data.root: {name} is {size[0]} x {size[1]} pixels but those before it are {expected[0]} x {expected[1]}; "
            f"set data.image_size to scale all pictures to one size"
        )


def _threaded(work: partial[tuple[str, Bytes]], chunks: Iterator[list[Encoded]]) -> Iterator[tuple[str, Bytes]]:
    """A few chunks ahead of the reader, so that memory stays bounded however many pictures there are."""
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
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
