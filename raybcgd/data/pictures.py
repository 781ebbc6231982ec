"""JPEG, PNG and other picture files to one array of bytes."""

import io
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from raybcgd.errors import ConfigError

Bytes = npt.NDArray[np.uint8]

GREY_MODES = frozenset({"1", "L", "LA"})
COLOUR_MODES = frozenset({"RGB", "RGBA", "P", "CMYK", "YCbCr"})

# Measured on 2 cores: a smaller picture spends its time in Python, where a second thread only gets in the way
# (32 x 32: 120 us alone, 185 us with two threads; 128 x 128: 240 and 180).
THREADED_FROM_PIXELS = 64 * 64
CHUNK = 64


class Encoded(NamedTuple):
    """The bytes of a picture file, and its name for error messages."""

    data: bytes
    name: str


def one_line(error: BaseException) -> str:
    """The first line of what another library says, for an error message of ours."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def stack(pictures: Iterable[Encoded], count: int, image_size: int | None = None) -> Bytes:
    """Decode `count` pictures into (count, channels, height, width): 1 channel if all are grey, else 3.

    With `image_size` every picture is scaled to that many pixels a side; without, all must have one size.
    """
    decoded = decode_all(pictures, image_size)
    out: Bytes | None = None
    for i, (name, picture) in enumerate(decoded):
        height, width, channels = picture.shape
        if out is None:
            out = np.empty((count, channels, height, width), dtype=np.uint8)
        if (height, width) != out.shape[2:]:
            raise ConfigError(
                f"data.root: {name} is {width} x {height} pixels but those before it are {out.shape[3]} x "
                f"{out.shape[2]}; set data.image_size to scale all pictures to one size"
            )
        if channels > out.shape[1]:
            out = np.repeat(out, 3, axis=1)  # the first picture in colour after grey ones
        out[i] = picture.transpose(2, 0, 1)  # a grey picture among coloured ones is broadcast to all three channels
    if out is None:
        raise ConfigError("data.root: there are no pictures to read; point it to a folder that has some")
    return out


def same_channels(first: Bytes, second: Bytes) -> tuple[Bytes, Bytes]:
    """Both stacks with three channels if one of them has colour."""
    channels = max(first.shape[1], second.shape[1])
    return tuple(s if s.shape[1] == channels else np.repeat(s, channels, axis=1) for s in (first, second))  # type: ignore[return-value]


def decode(picture: Encoded, image_size: int | None) -> tuple[str, Bytes]:
    """Name and pixels (height, width, 1 or 3)."""
    try:
        with Image.open(io.BytesIO(picture.data)) as file:
            mode = file.mode
            if mode in GREY_MODES or mode in COLOUR_MODES:
                wanted = "L" if mode in GREY_MODES else "RGB"
                image: Image.Image = file if mode == wanted else file.convert(wanted)
                if image_size is not None and image.size != (image_size, image_size):
                    image = image.resize((image_size, image_size), Image.Resampling.BILINEAR)
                pixels: Bytes = np.asarray(image)
                return picture.name, pixels[:, :, None] if wanted == "L" else pixels
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, zlib.error and more on bad bytes
        raise ConfigError(
            f"data.root: cannot decode {picture.name} ({one_line(error)}); replace or remove it"
        ) from error
    raise ConfigError(f"data.root: {picture.name} has pixels of mode {mode}; convert it to 8-bit grey or RGB")


def decode_all(pictures: Iterable[Encoded], image_size: int | None) -> Iterator[tuple[str, Bytes]]:
    """Decode in order, on all cores when the pictures are large enough to gain from it."""
    waiting = iter(pictures)
    head = [decode(picture, image_size) for picture in islice(waiting, 1)]
    if not head:
        return iter(())
    height, width, _ = head[0][1].shape
    rest: Iterator[tuple[str, Bytes]]
    if height * width < THREADED_FROM_PIXELS:
        rest = (decode(picture, image_size) for picture in waiting)
    else:
        rest = _threaded(waiting, image_size)
    return chain(head, rest)


def _threaded(pictures: Iterator[Encoded], image_size: int | None) -> Iterator[tuple[str, Bytes]]:
    """Chunks a thread, a few chunks ahead: memory stays bounded however many pictures there are."""

    def work(chunk: list[Encoded]) -> list[tuple[str, Bytes]]:
        return [decode(picture, image_size) for picture in chunk]

    workers = usable_cores()
    ahead: deque[Future[list[tuple[str, Bytes]]]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool:
        try:
            while chunk := list(islice(pictures, CHUNK)):
                ahead.append(pool.submit(work, chunk))
                if len(ahead) > 2 * workers:
                    yield from ahead.popleft().result()
            while ahead:
                yield from ahead.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def usable_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
