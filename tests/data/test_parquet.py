"""Valid and invalid Parquet files in the Hugging Face layout."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from raybcgd.data.dataset import Dataset
from raybcgd.data.images import Encoded, stack
from raybcgd.data.inspect import describe
from raybcgd.data.settings import DataConfig
from raybcgd.data.sources import load
from raybcgd.errors import ConfigError


def read(root: Path, **settings: Any) -> Dataset:
    return load(DataConfig(source="parquet", root=str(root), **settings))


def refuse(root: Path, message: str, **settings: Any) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(root, **settings)
    assert "\n" not in str(caught.value)


def test_images_and_labels_are_read_in_order(parquet_folder: Path, pixels: Any) -> None:
    data = read(parquet_folder)
    assert np.array_equal(data.train.inputs, pixels(20, 1).transpose(0, 3, 1, 2))
    assert np.array_equal(data.test.inputs, pixels(8, 2).transpose(0, 3, 1, 2))
    assert data.train.targets.tolist() == [i % 4 for i in range(20)]
    assert data.classes == 4
    assert data.train.inputs.flags.c_contiguous
    assert np.allclose(data.mean, (data.train.inputs / 255).mean(axis=(0, 2, 3)))


@pytest.mark.parametrize(("test_name", "sub"), [("validation", ""), ("valid", "data"), ("val", "")])
def test_other_names_of_the_test_split_and_the_hubs_data_folder(
    parquet_folder: Path, test_name: str, sub: str, tmp_path: Path
) -> None:
    root = tmp_path / "hub"
    (root / sub).mkdir(parents=True)
    for path in parquet_folder.iterdir():
        path.rename(root / sub / path.name.replace("test", test_name))
    assert len(read(root).test) == 8


def test_a_named_data_set_also_reads_parquet(parquet_folder: Path) -> None:
    for source in ("cifar10", "tiny_imagenet"):
        assert len(load(DataConfig(source=source, root=str(parquet_folder))).train) == 20


def test_large_images_decode_in_threads_to_the_same_pixels(
    tmp_path: Path, pixels: Any, encode: Any, write_parquet: Any
) -> None:
    train = pixels(300, 3, side=64)
    for split in ("train", "test"):
        write_parquet(tmp_path / f"{split}-0.parquet", [encode(p) for p in train], [i % 2 for i in range(300)])
    assert np.array_equal(read(tmp_path).train.inputs, train.transpose(0, 3, 1, 2))


def test_columns_are_found_or_configured(tmp_path: Path, pixels: Any, encode: Any, write_parquet: Any) -> None:
    images = [encode(p) for p in pixels(6)]
    for split in ("train", "test"):
        columns = {"image": "photo", "label": "fine_label", "coarse_label": [0] * 6, "weight": [0.5] * 6}
        write_parquet(tmp_path / f"{split}.parquet", images, [0, 1, 2] * 2, **columns)
    assert read(tmp_path).classes == 3
    lines = dict(describe(read(tmp_path)))
    assert (lines["label column"], lines["image column"]) == ("fine_label", "photo")
    assert set(read(tmp_path, label_column="coarse_label").train.targets) == {0}
    refuse(tmp_path, r"data\.image_column is weight; use photo, which has image bytes", image_column="weight")
    refuse(tmp_path, r"data\.label_column is name; use one of fine_label, ", label_column="name")


def test_plain_binary_columns_work(tmp_path: Path, pixels: Any, encode: Any) -> None:
    table = pa.table({"img": [encode(p) for p in pixels(4)], "label": pa.array([0, 1, 1, 0], pa.uint8())})
    for split in ("train", "test"):
        pq.write_table(table, tmp_path / f"{split}-0.parquet")
    assert np.array_equal(read(tmp_path).train.inputs, pixels(4).transpose(0, 3, 1, 2))


def test_ambiguous_or_missing_columns_name_the_setting(
    tmp_path: Path, pixels: Any, encode: Any, write_parquet: Any
) -> None:
    images = [encode(p) for p in pixels(2)]
    for split in ("train", "test"):
        write_parquet(tmp_path / "two" / f"{split}-0.parquet", images, [0, 1], label="a", b=[0, 1])
        write_parquet(tmp_path / "none" / f"{split}-0.parquet", images, ["cat", "dog"])
    refuse(tmp_path / "two", r"data\.label_column is not set; use one of a, b, which have integers")
    refuse(tmp_path / "none", r"data\.label_column: found no integers to use as labels in .*, which has label")


def test_class_names_in_the_file_set_the_number_of_classes(parquet_folder: Path) -> None:
    features = {"label": {"names": [str(i) for i in range(7)], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    for path in parquet_folder.iterdir():
        pq.write_table(pq.read_table(path).replace_schema_metadata(metadata), path)
    assert read(parquet_folder).classes == 7
    assert read(parquet_folder, classes=9).classes == 9


def test_mixed_grey_and_colour_becomes_colour(tmp_path: Path, pixels: Any, encode: Any, write_parquet: Any) -> None:
    colour = pixels(80)
    grey = colour[:, :, :, 0]
    mixed = [encode(g) for g in grey[:70]] + [encode(c) for c in colour[70:]]
    write_parquet(tmp_path / "train-0.parquet", mixed, [0, 1] * 40)
    write_parquet(tmp_path / "test-0.parquet", [encode(g) for g in grey], [0, 1] * 40)
    data = read(tmp_path)
    assert data.train.inputs.shape == (80, 3, 6, 6)
    assert np.array_equal(data.train.inputs[:70], np.repeat(grey[:70, None], 3, axis=1))
    assert np.array_equal(data.train.inputs[70:], colour[70:].transpose(0, 3, 1, 2))
    assert np.array_equal(data.test.inputs, np.repeat(grey[:, None], 3, axis=1))


def test_all_grey_stays_grey(tmp_path: Path, pixels: Any, encode: Any, write_parquet: Any) -> None:
    for split in ("train", "test"):
        write_parquet(tmp_path / f"{split}-0.parquet", [encode(p[:, :, 0]) for p in pixels(4)], [0, 1, 0, 1])
    assert read(tmp_path).train.inputs.shape == (4, 1, 6, 6)


def test_sixteen_bit_images_are_refused(tmp_path: Path, write_parquet: Any) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((6, 6), dtype=np.uint16)).save(buffer, "PNG")
    for split in ("train", "test"):
        write_parquet(tmp_path / f"{split}-0.parquet", [buffer.getvalue()] * 2, [0, 1])
    refuse(tmp_path, r"data\.root: cannot decode row 0 of .*train-0\.parquet \(pixels of mode I.*8-bit")


@pytest.mark.parametrize("place", [1, 70])
def test_an_image_of_another_size_is_named_or_resized(
    place: int, tmp_path: Path, pixels: Any, encode: Any, write_parquet: Any
) -> None:
    images = [encode(p) for p in pixels(80)]
    write_parquet(tmp_path / "test-0.parquet", images, [0, 1] * 40)
    images[place] = encode(pixels(1, side=9)[0])
    write_parquet(tmp_path / "train-0.parquet", images, [0, 1] * 40)
    refuse(tmp_path, rf"data\.root: row {place} of .*train-0.* size \(9, 9\), not \(6, 6\); set data\.image_size")
    assert read(tmp_path, image_size=6).train.inputs.shape == (80, 3, 6, 6)


def test_different_sizes_of_train_and_test_are_refused(
    tmp_path: Path, pixels: Any, encode: Any, write_parquet: Any
) -> None:
    for split, side in (("train", 6), ("test", 7)):
        write_parquet(tmp_path / f"{split}-0.parquet", [encode(p) for p in pixels(4, side=side)], [0, 1, 0, 1])
    refuse(tmp_path, r"data\.test .* shape \(3, 7, 7\) but data\.train")


@pytest.mark.parametrize("keep", [0, 3, 10, -20, -1])
def test_a_truncated_file_is_named(parquet_folder: Path, keep: int) -> None:
    path = parquet_folder / "train-00001-of-00002.parquet"
    path.write_bytes(path.read_bytes()[:keep])
    refuse(parquet_folder, r"data\.root: cannot read .*train-00001-of-00002\.parquet .*fetch it again")


def test_a_corrupt_file_raises_only_config_errors(parquet_folder: Path) -> None:
    """Flip bytes throughout the file: it is either read or refused with a ConfigError."""
    path = parquet_folder / "test-00000-of-00001.parquet"
    whole = path.read_bytes()
    for start in range(4, len(whole) - 4, 101):
        path.write_bytes(whole[:start] + bytes(b ^ 255 for b in whole[start : start + 8]) + whole[start + 8 :])
        with contextlib.suppress(ConfigError):
            read(parquet_folder)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        ([b"not an image", "good"], [0, 1], r"cannot decode row 0 of .* \(not an image\)"),
        (["good", None], [0, 1], r"row 1 of .* has no image bytes in column 'image'"),
        (["good", "cut"], [0, 1], r"cannot decode row 1 of"),
        (["good", "good"], [0, None], r"data\.label_column: column 'label' .* without a label"),
        (["good", "good"], [0, -1], r"data\.train .* labels run from -1 to 0"),
        (["good", "good"], [0, 500], r"the largest train label is 500, but there are only 2 training samples"),
    ],
)
def test_bad_rows_are_named(
    tmp_path: Path, pixels: Any, encode: Any, write_parquet: Any, images: list[Any], labels: list[Any], message: str
) -> None:
    good = encode(pixels(1)[0])
    kinds = {"good": good, "cut": good[: len(good) // 2]}
    write_parquet(tmp_path / "test-0.parquet", [good] * 2, [0, 1])
    write_parquet(tmp_path / "train-0.parquet", [kinds.get(i, i) for i in images], labels)
    refuse(tmp_path, message)


@pytest.mark.parametrize("claimed", [1, 2, 4, 9, 10**15])
def test_a_wrong_number_of_images_is_refused(claimed: int, pixels: Any, encode: Any) -> None:
    """The reader must neither crash nor return uninitialised rows."""
    with pytest.raises(ConfigError, match=r"data\.root: .*(fetch them again|do not fit in memory)"):
        stack([Encoded(encode(p), "x.png") for p in pixels(3)], claimed)
    with pytest.raises(ConfigError, match=r"data\.root: there are no images"):
        stack([], claimed)


def test_labels_beyond_the_classes_are_named(parquet_folder: Path) -> None:
    refuse(parquet_folder, r"data\.train .* labels run from 0 to 3, outside 0 \.\. 2; .*data\.classes to 4", classes=3)


def test_missing_and_empty_splits_are_named(parquet_folder: Path, write_parquet: Any, tmp_path: Path) -> None:
    refuse(tmp_path, r"data\.root: .* has no train-\*\.parquet files")
    test = parquet_folder / "test-00000-of-00001.parquet"
    pq.write_table(pq.read_table(test).slice(0, 0), test)
    refuse(parquet_folder, r"data\.root: .*test-00000-of-00001\.parquet has no rows")
    test.unlink()
    refuse(parquet_folder, r"data\.root: .* has no test-\*\.parquet \(or validation")
