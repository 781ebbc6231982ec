"""Wrong config files, data folders and run folders. Each function writes one into a folder."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

Prepare = Callable[[Path], object]


def png(value: int = 0, size: int = 8, mode: str = "L") -> bytes:
    """Return an image file."""
    buffer = io.BytesIO()
    Image.new(mode, (size, size), value).save(buffer, "PNG")
    return buffer.getvalue()


def write(name: str, content: str | bytes) -> Prepare:
    """Write a file."""

    def prepare(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return prepare


def parquet(train: dict[str, Any], test: dict[str, Any] | None = None) -> Prepare:
    """Write Parquet files of 40 images with the columns given. A column None is left out."""

    def prepare(folder: Path) -> None:
        (folder / "data").mkdir()
        columns = {"image": [{"bytes": png(), "path": None}] * 40, "label": [0, 1, 2, 3] * 10}
        for split, own in (("train", train), ("test", train if test is None else test)):
            kept = {key: value for key, value in {**columns, **own}.items() if value is not None}
            pq.write_table(pa.table(kept), folder / "data" / f"{split}-00000-of-00001.parquet")

    return prepare


def images(change: Prepare | None = None) -> Prepare:
    """Write an image folder of two classes, then change it."""

    def prepare(folder: Path) -> None:
        for split, label, number in [(s, c, k) for s in ("train", "test") for c in ("cat", "dog") for k in range(6)]:
            write(f"data/{split}/{label}/{number}.png", png(9 * number))(folder)
        if change:
            change(folder)

    return prepare


def remove(name: str) -> Prepare:
    """Remove a file or folder."""

    def prepare(folder: Path) -> None:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return prepare


def edit(name: str, old: str, new: str) -> Prepare:
    """Replace text in a file."""

    def prepare(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text, text
        (folder / name).write_text(text.replace(old, new))

    return prepare


def all_of(*steps: Prepare) -> Prepare:
    """Do one step after the other."""
    return lambda folder: [step(folder) for step in steps]


def make_folder(name: str) -> Prepare:
    """Make an empty folder."""
    return lambda folder: (folder / name).mkdir(parents=True)


def cut(name: str, keep: int) -> Prepare:
    """Keep the first bytes of every file that matches."""

    def prepare(folder: Path) -> None:
        found = list(folder.glob(name))
        assert found
        for path in found:
            path.write_bytes(path.read_bytes()[:keep])

    return prepare


def drop_line(name: str, line: int) -> Prepare:
    """Remove a line of a file."""

    def prepare(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:line] + lines[line + 1 :]))

    return prepare


def change_json(name: str, change: Callable[[Any], object]) -> Prepare:
    """Change the content of a JSON file."""

    def prepare(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return prepare


def save_array(name: str, array: np.ndarray) -> Prepare:
    """Write a .npy file."""

    def prepare(folder: Path) -> None:
        np.save(folder / name, array)

    return prepare
