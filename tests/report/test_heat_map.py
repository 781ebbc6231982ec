"""The heat map of the labels per client."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raybcgd.errors import ConfigError
from raybcgd.report.heat_map import draw_heat_map


@pytest.mark.parametrize(("clients", "classes"), [(1, 2), (40, 10), (1000, 200)])
def test_the_heat_map_is_a_png(clients: int, classes: int, tmp_path: Path) -> None:
    counts = np.random.default_rng(0).integers(0, 50, (clients, classes))
    path = tmp_path / "new" / "map.png"
    draw_heat_map(counts, path, "digits")
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert len(image.convert("RGB").getcolors(10**6) or []) > 20


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install raybcgd\[plots\]"):
        draw_heat_map(np.ones((2, 2), dtype=np.int64), tmp_path / "map.png", "digits")


def test_an_unwritable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write .*map\.png"):
        draw_heat_map(np.ones((2, 2), dtype=np.int64), tmp_path / "file" / "map.png", "digits")
