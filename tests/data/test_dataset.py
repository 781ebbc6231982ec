"""`Dataset`, the built-in digits, and the checks of input data."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from raybcgd.data.dataset import Dataset, channel_statistics
from raybcgd.data.from_python import as_dataset
from raybcgd.data.settings import DataConfig
from raybcgd.data.sources import load
from raybcgd.errors import ConfigError


def arrays(**changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    good = {
        "train_inputs": rng.standard_normal((12, 5)),
        "train_targets": np.arange(12) % 3,
        "test_inputs": rng.standard_normal((6, 5)),
        "test_targets": np.arange(6) % 3,
    }
    return {**good, **changes}


def test_digits_have_a_fixed_stratified_split() -> None:
    digits = load(DataConfig())
    assert digits.train.inputs.shape == (1442, 1, 8, 8)
    assert digits.test.inputs.shape == (355, 1, 8, 8)
    assert digits.train.inputs.dtype == np.uint8
    assert digits.train.inputs.max() == digits.scale == 16
    from sklearn.datasets import load_digits

    everything = load_digits()
    zeros = everything.images[everything.target == 0]
    assert np.array_equal(digits.test.inputs[digits.test.targets == 0, 0], zeros[4::5])
    shares = [np.bincount(split.targets, minlength=10) / len(split) for split in (digits.train, digits.test)]
    assert np.allclose(*shares, atol=0.01)


def test_loading_is_repeatable_and_survives_pickling() -> None:
    one, two = load(DataConfig()), pickle.loads(pickle.dumps(load(DataConfig())))
    assert np.array_equal(one.train.inputs, two.train.inputs)
    assert (one.mean, one.std, one.classes) == (two.mean, two.std, two.classes)


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_custom_tensors_and_arrays(kind: Any) -> None:
    made = Dataset.from_tensors(**{name: kind(value) for name, value in arrays().items()})
    assert made.classes == 3
    assert made.train.targets.dtype == np.int64
    assert made.train.inputs.dtype == np.float64, "float inputs are unchanged"
    assert (made.scale, made.mean, made.std) == (1.0, (0.0,), (1.0,))


def test_half_precision_and_non_native_byte_order_are_converted() -> None:
    half = {name: torch.as_tensor(value) for name, value in arrays().items()}
    for name in ("train_inputs", "test_inputs"):
        half[name] = half[name].bfloat16().requires_grad_()
    assert Dataset.from_tensors(**half).train.inputs.dtype == np.float32
    swapped = arrays(train_inputs=arrays()["train_inputs"].astype(">f8"))
    assert torch.from_numpy(Dataset.from_tensors(**swapped).train.inputs).dtype == torch.float64


def test_custom_bytes_are_normalised() -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 3, 4, 4), dtype=np.uint8)
    made = Dataset.from_tensors(images, np.arange(12) % 3, images, np.arange(12) % 3)
    assert np.allclose(made.mean, (images / 255).mean(axis=(0, 2, 3)))
    assert np.allclose(made.std, (images / 255).std(axis=(0, 2, 3)))
    grey = Dataset.from_tensors(
        images[:, 0], np.arange(12) % 3, images[:, 1], np.arange(12) % 3, mean=(0.5,), std=(0.2,)
    )
    assert grey.train.inputs.shape == (12, 1, 4, 4)
    assert (grey.mean, grey.std) == ((0.5,), (0.2,))


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
@pytest.mark.parametrize(("shape", "last"), [((8, 8, 3), True), ((28, 28, 1), True), ((12, 3, 3), False)])
def test_images_with_their_channels_last_are_refused(kind: Any, shape: tuple[int, ...], last: bool) -> None:
    images, labels = kind(np.zeros((12, *shape), dtype=np.uint8)), np.arange(12) % 3
    if not last:
        assert as_dataset((images, labels, images, labels)).train.inputs.shape[1:] == shape
        return
    with pytest.raises(ConfigError) as error:
        as_dataset((images, labels, images, labels))
    call = "transpose" if kind is np.asarray else "permute"
    assert str(error.value) == (
        f"data.train inputs have shape {(12, *shape)}, with the channels last; make it (n, channels, height, width), "
        f"for example with `inputs.{call}(0, 3, 1, 2)`"
    )
    as_dataset((images.swapaxes(1, 3), labels, images.swapaxes(1, 3), labels))


def test_a_constant_channel_does_not_divide_by_zero() -> None:
    assert channel_statistics(np.full((3, 1, 2, 2), 51, dtype=np.uint8), 255.0) == ((0.2,), (1.0,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_targets": np.arange(11) % 3}, r"data\.train .* 12 inputs but targets of shape \(11,\)"),
        ({"train_targets": np.ones((12, 1), int)}, r"targets of shape \(12, 1\).*`targets\.squeeze\(1\)`"),
        ({"train_targets": np.eye(12, dtype=int)}, r"targets of shape \(12, 12\).*`targets\.argmax\(1\)`"),
        ({"train_targets": np.arange(12) - 1}, r"data\.train .* labels run from -1"),
        (
            {"test_targets": np.full(6, 3)},
            r"data\.test .* labels run from 3 to 3, outside 0 \.\. 2.*data\.classes to 4",
        ),
        (
            {"train_targets": np.arange(12) % 4 + 1, "test_targets": np.arange(6) % 4 + 1},
            r"labels run from 1 to 4, so no sample has label 0; number .* `labels - 1`, or set data.classes to 5 ",
        ),
        ({"classes": 2}, r"data\.train .* outside 0 \.\. 1"),
        ({"train_targets": np.full(12, 10**9)}, r"label is 1000000000, but there are only 12 .*data\.classes"),
        (
            {"train_targets": np.zeros(12)},
            r"data\.test .* int64, but they should be floats, for regression; use",
        ),
        ({"train_inputs": np.full((12, 5), np.nan)}, r"data\.train .* NaN"),
        ({"test_targets": np.zeros(6)}, r"data\.test .* float64, but they should be labels of 3 classes; use the same"),
        ({"train_inputs": np.zeros((12, 5), dtype=bool)}, r"data\.train .* bool; use uint8 or floats, or integers"),
        ({"train_inputs": np.full((12, 5), -1)}, r"data\.train .* the token -1; number tokens from 0"),
        ({"train_inputs": np.zeros(12)}, r"data\.train inputs have shape \(12,\)"),
        ({"test_inputs": np.zeros((6, 4))}, r"data\.test .* shape \(4,\) but data\.train .* the same shape"),
        ({"test_inputs": np.zeros((0, 5)), "test_targets": np.zeros(0, dtype=int)}, r"data\.test .* is empty"),
        ({"train_inputs": np.zeros((0, 5)), "train_targets": np.zeros(0, dtype=int)}, r"data\.train .* is empty"),
        ({"std": (0.0,)}, "std .* must be positive"),
        ({"mean": (0.0, 1.0)}, "need 1 or 5 values"),
    ],
)
def test_invalid_data_is_refused_with_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Dataset.from_tensors(**arrays(**changes))
    assert "\n" not in str(caught.value)


def test_the_binary_task_halves_the_labels() -> None:
    whole, halves = load(DataConfig()), load(DataConfig(task="binary"))
    assert halves.classes == 2
    assert np.array_equal(halves.train.targets, (whole.train.targets < 5).astype(int))
    odd = load(DataConfig(task="binary", positive=(1, 3, 5, 7, 9)))
    assert np.array_equal(odd.test.targets, whole.test.targets % 2)


@pytest.mark.parametrize("positive", [(), (10,), (-1,), tuple(range(10))])
def test_a_binary_task_needs_both_classes(positive: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"data\.positive .* not all, of the labels 0 \.\. 9"):
        load(DataConfig(task="binary", positive=positive))


def test_a_test_subset_is_the_same_in_every_run() -> None:
    one, two = (load(DataConfig(test_samples=50)).test for _ in range(2))
    assert len(one) == 50
    assert np.array_equal(one.inputs, two.inputs)
    assert len(load(DataConfig(test_samples=10**6)).test) == 355


def test_a_validation_split_is_held_out_of_the_training_data_and_the_same_in_every_run() -> None:
    whole, train = load(DataConfig()), load(DataConfig(validation_share=0.1))
    tuned = load(DataConfig(validation_share=0.1, evaluate_on="validation"))
    assert np.array_equal(train.test.inputs, whole.test.inputs)
    assert np.array_equal(train.train.inputs, tuned.train.inputs)
    assert len(tuned.test) == pytest.approx(0.1 * len(whole.train), abs=5)
    assert np.bincount(tuned.test.targets).min() > 10
    rows = {row.tobytes() for row in tuned.test.inputs}
    assert len(rows) + len(train.train) == len(whole.train)
    assert not rows & {row.tobytes() for row in train.train.inputs}
    with pytest.raises(ValidationError, match="needs validation_share"):
        DataConfig(evaluate_on="validation")


def test_an_unknown_source_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r'data\.source = "coco" is unknown; use one of digits, parquet, .*emnist'):
        load(DataConfig(source="coco"))


@pytest.mark.parametrize("source", ["parquet", "image_folder", "tiny_imagenet", "cifar10", "emnist"])
def test_a_missing_root_is_named(source: str, tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"data\.root is not set"):
        load(DataConfig(source=source))
    with pytest.raises(ConfigError, match=r"data\.root: no such folder: .*nowhere"):
        load(DataConfig(source=source, root=str(tmp_path / "nowhere")))


def test_labels_that_do_not_start_at_0_need_classes(caplog: pytest.LogCaptureFixture) -> None:
    labels = {"train_targets": np.arange(12) % 4 + 1, "test_targets": np.arange(6) % 4 + 1}
    assert Dataset.from_tensors(**arrays(**labels, classes=5)).classes == 5
    assert not caplog.text
    assert Dataset.from_tensors(**arrays(train_targets=np.arange(12) % 3 * 2)).classes == 5
    assert "labels run from 0 to 4, but no sample has label 3; if this is not intended" in caplog.text
    Dataset.from_tensors(**arrays(train_targets=np.arange(12) % 3 * 3))
    assert "labels run from 0 to 6, but no sample has labels 4, 5; if this is not intended" in caplog.text


@pytest.mark.parametrize("classes", [None, 3])
def test_training_data_of_one_class_give_a_note(classes: int | None, caplog: pytest.LogCaptureFixture) -> None:
    Dataset.from_tensors(**arrays(classes=classes))
    assert not caplog.text
    Dataset.from_tensors(**arrays(train_targets=np.zeros(12, int), test_targets=np.zeros(6, int), classes=classes))
    assert "note: data 'tensors': all training samples have label 0; if this is not intended" in caplog.text
