"""Small data sets in every supported layout."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image


def png(pixels: np.ndarray) -> bytes:
    """Encode losslessly, so that tests can compare pixels."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def encode() -> Callable[[np.ndarray], bytes]:
    return png


@pytest.fixture
def pixels() -> Callable[..., np.ndarray]:
    """Make random colour images (n, height, width, 3)."""

    def make(n: int, seed: int = 0, side: int = 6) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, 256, (n, side, side, 3), dtype=np.uint8)

    return make


@pytest.fixture
def write_parquet() -> Callable[..., Path]:
    """Write one file in the Hugging Face layout: an image struct of bytes and path, and a label."""

    def write(
        path: Path,
        images: list[bytes | None],
        labels: list[Any],
        image: str = "image",
        label: str = "label",
        **extra: Any,
    ) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"bytes": data, "path": f"{i}.png"} for i, data in enumerate(images)]
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        columns = {image: pa.array(rows, kind), label: pa.array(labels), **{k: pa.array(v) for k, v in extra.items()}}
        pq.write_table(pa.table(columns), path)
        return path

    return write


@pytest.fixture
def parquet_folder(tmp_path: Path, pixels: Any, write_parquet: Any) -> Path:
    """20 train and 8 test colour images of 4 classes, with the train split in two files."""
    train, test = pixels(20, 1), pixels(8, 2)
    labels = [i % 4 for i in range(20)]
    root = tmp_path / "parquet"
    write_parquet(root / "train-00000-of-00002.parquet", [png(p) for p in train[:12]], labels[:12])
    write_parquet(root / "train-00001-of-00002.parquet", [png(p) for p in train[12:]], labels[12:])
    write_parquet(root / "test-00000-of-00001.parquet", [png(p) for p in test], labels[:8])
    return root


@pytest.fixture
def image_folder(tmp_path: Path, pixels: Any) -> Path:
    """train/ and val/ with the classes cat and dog, 5 and 2 images each."""
    root = tmp_path / "folder"
    for part, count, seed in (("train", 5, 1), ("val", 2, 2)):
        for c, name in enumerate(("cat", "dog")):
            folder = root / part / name
            folder.mkdir(parents=True)
            for i, image in enumerate(pixels(count, seed * 10 + c)):
                (folder / f"{i}.png").write_bytes(png(image))
    return root
