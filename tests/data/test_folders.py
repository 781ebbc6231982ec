"""Image folders, Tiny ImageNet's layout, and packing into Parquet."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from raybcgd.data.dataset import Dataset
from raybcgd.data.pack import pack
from raybcgd.data.settings import DataConfig
from raybcgd.data.sources import load
from raybcgd.errors import ConfigError


def read(source: str, root: Path, **settings: Any) -> Dataset:
    return load(DataConfig(source=source, root=str(root), **settings))


def same(one: Dataset, two: Dataset) -> bool:
    parts = ((one.train, two.train), (one.test, two.test))
    return one.classes == two.classes and all(
        np.array_equal(a.inputs, b.inputs) and np.array_equal(a.targets, b.targets) for a, b in parts
    )


def one_level(root: Path, pixels: Any, encode: Any, count: int = 10) -> Path:
    for c, name in enumerate(("ant", "bee", "cow")):
        (root / name).mkdir(parents=True)
        for i, image in enumerate(pixels(count, c)):
            (root / name / f"{i:02d}.png").write_bytes(encode(image))
    return root


def test_class_folders_are_labels_in_alphabetical_order(image_folder: Path, pixels: Any) -> None:
    data = read("image_folder", image_folder)
    assert data.train.targets.tolist() == [0] * 5 + [1] * 5
    assert data.test.targets.tolist() == [0, 0, 1, 1]
    assert np.array_equal(data.train.inputs[5:], pixels(5, 11).transpose(0, 3, 1, 2))
    assert data.classes == 2


def test_without_a_test_folder_every_fifth_image_is_held_out(tmp_path: Path, pixels: Any, encode: Any) -> None:
    data = read("image_folder", one_level(tmp_path, pixels, encode))
    assert (len(data.train), len(data.test)) == (24, 6)
    assert np.array_equal(data.test.inputs[:2], pixels(10, 0)[[4, 9]].transpose(0, 3, 1, 2))


def test_packing_preserves_the_data(image_folder: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    packed = pack(image_folder, tmp_path / "out", 4, lambda done, total: seen.append((done, total)))
    assert (packed.train, packed.test, packed.classes) == (10, 4, 2)
    assert [path.name for path in packed.files] == [
        *(f"train-{i:05d}-of-00003.parquet" for i in range(3)),
        "test-00000-of-00001.parquet",
    ]
    assert sorted(tmp_path.joinpath("out").iterdir()) == sorted(packed.files)
    assert seen[-1] == (14, 14)
    assert same(read("image_folder", image_folder), read("parquet", tmp_path / "out"))
    first = pq.read_table(packed.files[0]).column("image")[0].as_py()
    assert first == {"path": "train/cat/0.png", "bytes": (image_folder / "train/cat/0.png").read_bytes()}


def test_packing_without_a_test_folder_holds_out_the_same_images(tmp_path: Path, pixels: Any, encode: Any) -> None:
    root = one_level(tmp_path / "in", pixels, encode)
    pack(root, tmp_path / "out")
    assert same(read("image_folder", root), read("parquet", tmp_path / "out"))


def test_packing_refuses_bad_folders_images_and_sizes(image_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^no such folder"):
        pack(tmp_path / "nowhere", tmp_path / "out")
    (image_folder / "train/dog/3.png").write_bytes(b"not an image")
    with pytest.raises(ConfigError, match=r"^cannot decode .*3\.png \(not an image\)"):
        pack(image_folder, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == [], "no partial file is left"
    (image_folder / "train/dog/3.png").unlink()
    pack(image_folder, tmp_path / "out")
    with pytest.raises(ConfigError, match="already has Parquet files"):
        pack(image_folder, tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot pack into"):
        pack(image_folder, tmp_path / "file" / "out")
    with pytest.raises(ConfigError, match="shard size is 0"):
        pack(image_folder, tmp_path / "other", 0)


def tiny_imagenet(root: Path, pixels: Any, encode: Any) -> Path:
    (root / "val/images").mkdir(parents=True)
    lines = []
    for c, wnid in enumerate(("n02", "n01")):
        (root / "train" / wnid / "images").mkdir(parents=True)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("0\t0\t1\t1\n")
        for i, image in enumerate(pixels(4, c)):
            (root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG").write_bytes(encode(image))
        (root / "val/images" / f"val_{c}.JPEG").write_bytes(encode(pixels(1, 10 + c)[0]))
        lines.append(f"val_{c}.JPEG\t{wnid}\t0\t0\t5\t5")
    (root / "val/val_annotations.txt").write_text("\n".join(lines) + "\n")
    return root


def test_tiny_imagenet_layout(tmp_path: Path, pixels: Any, encode: Any) -> None:
    data = read("tiny_imagenet", tiny_imagenet(tmp_path, pixels, encode))
    assert data.train.targets.tolist() == [0] * 4 + [1] * 4
    assert np.array_equal(data.train.inputs[4:], pixels(4, 0).transpose(0, 3, 1, 2)), "n02 is label 1"
    assert data.test.targets.tolist() == [1, 0]
    assert np.array_equal(data.test.inputs[1], pixels(1, 11)[0].transpose(2, 0, 1))


def test_broken_tiny_imagenet_is_named(tmp_path: Path, pixels: Any, encode: Any) -> None:
    root = tiny_imagenet(tmp_path, pixels, encode)
    annotations = root / "val/val_annotations.txt"
    for text, message in (
        ("val_0.JPEG\tn99\t0\n", "line 1 of .* names a class not in train/"),
        ("val_0.JPEG\n", "line 1 of .* names a class not in train/"),
        ("", "is empty"),
        ("gone.JPEG\tn01\n", r"cannot read .*gone\.JPEG"),
    ):
        annotations.write_text(text)
        with pytest.raises(ConfigError, match=rf"data\.root: .*{message}"):
            read("tiny_imagenet", root)
    annotations.unlink()
    with pytest.raises(ConfigError, match=r"data\.root: cannot read .*val_annotations\.txt"):
        read("tiny_imagenet", root)
    with pytest.raises(ConfigError, match=r"data\.root: no such folder: .*train"):
        read("tiny_imagenet", root / "val")


@pytest.mark.parametrize("name", ["image_column", "label_column"])
def test_columns_of_image_files_are_refused(name: str, tmp_path: Path, pixels: Any, encode: Any) -> None:
    with pytest.raises(ValueError, match=rf'data\.{name} has no effect with data\.source = "image_folder"; remove it'):
        read("image_folder", tmp_path, **{name: "x"})
    root = tiny_imagenet(tmp_path, pixels, encode)
    with pytest.raises(ConfigError, match=rf'data\.{name} has no effect with the original .* "tiny_imagenet"; remove'):
        read("tiny_imagenet", root, **{name: "x"})


def test_broken_folders_are_named(image_folder: Path, tmp_path: Path, pixels: Any, encode: Any) -> None:
    def refuse(message: str, root: Path = image_folder) -> None:
        with pytest.raises(ConfigError, match=rf"data\.root: .*{message}"):
            read("image_folder", root)

    (image_folder / "val/emu").mkdir()
    refuse("emu is not in train/")
    (image_folder / "val/emu").rmdir()
    (image_folder / "train/cat/0.png").write_bytes(encode(pixels(1, side=9)[0]))
    refuse("set data.image_size")
    assert read("image_folder", image_folder, image_size=5).train.inputs.shape == (10, 3, 5, 5)
    (image_folder / "val").rename(image_folder / "elsewhere")
    refuse("has train/ but no test/")
    (tmp_path / "empty").mkdir()
    refuse("no class folders", tmp_path / "empty")
    (tmp_path / "hollow/cat").mkdir(parents=True)
    refuse("contain no images", tmp_path / "hollow")
    refuse("no class in .* 5 images", one_level(tmp_path / "few", pixels, encode, count=2))
