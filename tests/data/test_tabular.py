"""Parquet files without images: tables of numbers, vectors and token sequences."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from raybcgd import Config, ConfigError, run
from raybcgd.cli import app
from raybcgd.data.dataset import Dataset
from raybcgd.data.inspect import describe
from raybcgd.data.normalise import normalise
from raybcgd.data.settings import DataConfig
from raybcgd.data.sources import load
from tests.conftest import small

RNG = np.random.default_rng(0)
ROWS = 120
AGE, INCOME, MEMBER = RNG.integers(18, 80, ROWS), RNG.normal(40_000, 9000, ROWS), RNG.random(ROWS) < 0.5
TABLE = {"age": AGE, "income": INCOME, "member": MEMBER, "constant": np.ones(ROWS), "label": (AGE > 50).astype(int)}
WORDS = [RNG.integers(1, 20, 1 + k % 7).tolist() for k in range(ROWS)]


def folder(path: Path, columns: dict[str, Any], test: dict[str, Any] | None = None) -> Path:
    path.mkdir(exist_ok=True)
    for split, values in (("train", columns), ("test", test or columns)):
        half = len(next(iter(values.values()))) // 2
        table = pa.table(values)
        pq.write_table(table.slice(0, half), path / f"{split}-0.parquet")
        pq.write_table(table.slice(half), path / f"{split}-1.parquet")
    return path


def read(path: Path, **settings: Any) -> Dataset:
    return load(DataConfig(**{"source": "parquet", "root": str(path), **settings}))


def test_columns_of_numbers_are_features_normalised_one_by_one(tmp_path: Path) -> None:
    data = read(folder(tmp_path, TABLE))
    assert data.train.inputs.shape == (ROWS, 4)
    assert data.train.targets.tolist() == TABLE["label"].tolist()
    inputs = normalise(torch.from_numpy(data.train.inputs), data)
    assert torch.allclose(inputs.mean(0), torch.zeros(4), atol=1e-4)
    assert torch.allclose(inputs.std(0, correction=0), torch.tensor([1.0, 1.0, 1.0, 0.0]), atol=1e-4)


def test_the_index_of_a_pandas_table_is_neither_a_feature_nor_a_label(tmp_path: Path) -> None:
    index = {"__index_level_0__": np.arange(ROWS)}
    data = read(folder(tmp_path / "table", TABLE | index))
    assert data.columns is not None
    assert data.columns.inputs == ("age", "income", "member", "constant")
    unlabelled = {"income": INCOME, "label": AGE / 2} | index
    with pytest.raises(ConfigError, match="found no integers to use as labels"):
        read(folder(tmp_path / "unlabelled", unlabelled))


def test_columns_that_are_not_used_give_a_note(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read(folder(tmp_path / "a", TABLE | {"city": ["Bern"] * ROWS, "__index_level_0__": np.arange(ROWS)}))
    assert "note: columns that are not used as features: city (string)" in caplog.text
    assert "index" not in caplog.text
    caplog.clear()
    read(folder(tmp_path / "b", TABLE))
    assert caplog.text == ""


def test_string_labels_are_no_reason_to_suggest_a_regression(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="write the labels as integers 0, 1, …, or name their column"):
        read(folder(tmp_path, {"income": INCOME, "label": ["yes"] * ROWS}))


def test_a_table_without_rows_gives_one_line(tmp_path: Path) -> None:
    empty = {name: values[:0] for name, values in TABLE.items()}
    path = folder(tmp_path, empty, TABLE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ConfigError, match=r"data\.root: .*train-0\.parquet has no rows"):
            read(path)


def test_the_error_about_labels_shows_their_column_first(tmp_path: Path) -> None:
    many = {f"feature_{k}": INCOME for k in range(30)} | {"label": AGE / 2}
    with pytest.raises(ConfigError, match=r"which has label \(double\), feature_0"):
        read(folder(tmp_path, many))


def test_chosen_columns_are_read_in_the_given_order(tmp_path: Path) -> None:
    data = read(folder(tmp_path, TABLE), feature_columns=("income", "age"))
    assert np.allclose(data.train.inputs[:, 0], INCOME)
    assert data.train.inputs[:, 1].tolist() == AGE.tolist()


def test_numbers_are_the_targets_of_a_regression(tmp_path: Path) -> None:
    path = folder(tmp_path, TABLE)
    data = read(path, task="regression", label_column="income")
    assert data.regression
    assert np.allclose(data.train.targets, INCOME)
    assert data.train.inputs.shape == (ROWS, 4), "with the target as label, the labels are a feature"
    assert (data.labels.min(), data.labels.max(), data.label_count) == (0, 9, 10)


def test_lists_of_integers_are_tokens_padded_to_the_longest_of_both_splits(tmp_path: Path) -> None:
    test = {"tokens": [[3] * 11, [4]], "label": [0, 1]}
    data = read(folder(tmp_path, {"tokens": WORDS, "label": [k % 2 for k in range(ROWS)]}, test))
    assert data.tokens
    assert data.train.inputs.shape == (ROWS, 11)
    assert [row[row > 0].tolist() for row in data.train.inputs] == WORDS
    assert data.test.inputs[1].tolist() == [4] + [0] * 10
    raw = torch.from_numpy(data.train.inputs)
    assert torch.equal(normalise(raw, data), raw), "tokens are not normalised"


def test_lists_of_floats_are_vectors(tmp_path: Path) -> None:
    vectors = RNG.normal(size=(ROWS, 3)).astype(np.float32)
    data = read(folder(tmp_path, {"embedding": list(vectors), "label": [k % 2 for k in range(ROWS)]}))
    assert np.array_equal(data.train.inputs, vectors)


def test_columns_in_another_order_are_read_by_name(tmp_path: Path) -> None:
    data = read(folder(tmp_path, TABLE, dict(reversed(TABLE.items()))))
    assert np.array_equal(data.train.inputs, data.test.inputs)


@pytest.mark.parametrize(
    ("missing", "settings", "fix"),
    [
        (["income"], {}, "; write the same columns to all files, or set data.feature_columns to those in all of them"),
        (["member", "income"], {"feature_columns": ("member", "income")}, "; write the same columns"),
        (["label"], {}, "; write the same columns to all files$"),
    ],
)
def test_a_column_that_is_missing_in_the_test_data_gives_one_line(
    missing: list[str], settings: Any, fix: str, tmp_path: Path
) -> None:
    path = folder(tmp_path, TABLE, {name: values for name, values in TABLE.items() if name not in missing})
    names = ", ".join(f'"{name}"' for name in missing)
    message = f"^data.root: .*/test-0.parquet lacks columns that .*/train-0.parquet has: {names}{fix}"
    with pytest.raises(ConfigError, match=message):
        read(path, **settings)


def test_a_column_that_is_missing_in_one_of_the_training_files_is_named(tmp_path: Path) -> None:
    path = folder(tmp_path, TABLE)
    pq.write_table(pa.table(TABLE).drop_columns(["age"]), path / "train-1.parquet")
    with pytest.raises(ConfigError, match=r'train-1.parquet lacks columns that .*/train-0.parquet has: "age"; '):
        read(path)


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({"age": AGE, "label": ["a"] * ROWS}, {}, "found no integers to use as labels in .*, which has label"),
        (
            {**TABLE, "city": ["x"] * ROWS},
            {"feature_columns": ("city",)},
            '"city" of .* has string; use columns of numbers',
        ),
        (TABLE, {"image_size": 8}, "data.image_size has no effect with Parquet files without images; remove it"),
        (TABLE, {"source": "emnist", "emnist_split": "digits"}, "data.emnist_split has no effect with Parquet files"),
        (TABLE, {"feature_columns": ("height",)}, '"height" is not a feature column of .*; use some of age, income'),
        (
            {"age": AGE, "city": ["x"] * ROWS, "t": WORDS, "label": [0, 1] * 60},
            {"feature_columns": ("age", "height")},
            '"height" is not a feature column of .*; use some of age or one of t$',
        ),
        (TABLE, {"feature_columns": ("label", "age"), "label_column": "label"}, '"label" is not a feature column'),
        ({**TABLE, "age": [None, 1.0] * 60}, {}, '"age" of .* has rows without a value; fill or remove them'),
        ({**TABLE, "age": [np.inf, 1.0] * 60}, {}, "inputs contain NaN or infinity"),
        ({"v": [[0.5] * 4] * 119 + [[0.5] * 5], "label": [0, 1] * 60}, {}, "lists of 4 to 5 numbers; use lists of one"),
        ({"t": [[-1, 2]] * ROWS, "label": [0, 1] * 60}, {}, "the token -1; number tokens from 0"),
        ({"t": WORDS, "u": WORDS, "label": [0, 1] * 60}, {"feature_columns": ("t", "u")}, "use columns of numbers"),
        ({"name": ["a"] * ROWS}, {"task": "regression"}, "no column of .* has image files as bytes"),
        (
            {**TABLE, "label": [0.5] * ROWS},
            {"label_column": "label"},
            "data.label_column: label holds values of type double; encode them as integers 0, 1, … in the file, set "
            r'data.task = "regression", or name another column \(integers: age\)',
        ),
        (
            {"age": AGE, "species": ["cat"] * ROWS},
            {"label_column": "species"},
            "data.label_column: species holds strings; encode them as integers 0, 1, … in the file, or name another "
            r"column \(integers: age\)",
        ),
        (
            {"age": AGE, "species": pa.array(["cat"] * ROWS).dictionary_encode()},
            {"label_column": "species", "task": "regression"},
            "data.label_column: species holds strings; encode them as numbers in the file, or name another column",
        ),
    ],
)
def test_wrong_tables_give_one_line(tmp_path: Path, columns: Any, settings: Any, message: str) -> None:
    path = folder(tmp_path, columns)
    with pytest.raises(ConfigError, match=message) as caught:
        read(path, **settings)
    assert "\n" not in str(caught.value)


def test_the_columns_that_were_found_are_described(tmp_path: Path) -> None:
    path = folder(tmp_path, {"age": AGE % 3, "income": INCOME, "species": ["cat"] * ROWS})
    lines = dict(describe(read(path)))
    assert (lines["label column"], lines["feature columns"]) == ("age", "income")


def test_a_feature_that_is_named_like_a_client_id_gives_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder(tmp_path, {**TABLE, "Client_ID": np.arange(ROWS) % 7})
    read(path)
    (note,) = caplog.messages
    assert note.startswith(
        "note: column Client_ID is used as a feature; set data.client_column if it names the clients"
    )
    caplog.clear()
    read(path, client_column="Client_ID")
    read(path, feature_columns=("age", "Client_ID"))
    assert not caplog.messages


class Words(nn.Module):
    """The mean of the words' embeddings, without padding."""

    def __init__(self, vocabulary: int = 20, width: int = 8) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        known = (tokens > 0).unsqueeze(-1)
        return self.head((self.embedding(tokens) * known).sum(-2) / known.sum(-2).clamp(min=1))


def text(count: int, seed: int) -> dict[str, Any]:
    """Synthetic sentences: the label tells whether there are more words above 10 than below."""
    rng = np.random.default_rng(seed)
    sentences = [rng.integers(1, 20, rng.integers(3, 12)) for _ in range(count)]
    return {"tokens": [s.tolist() for s in sentences], "label": [int((s > 10).mean() > 0.5) for s in sentences]}


@pytest.mark.parametrize("stack", [0, 8])
def test_an_embedding_model_learns_from_token_sequences(tmp_path: Path, stack: int) -> None:
    config = Config(
        rounds=15,
        engine="local",
        metrics={"enabled": False},
        algorithm={"name": "fedavg", "lr": 2.0},
        data={
            "source": "parquet",
            "root": str(folder(tmp_path / "data", text(400, 0), text(100, 1))),
            "partition": {"clients": 8},
        },
        local={"stack": stack, "epochs": 3},
        cohort={"clients_per_round": 8},
    )
    torch.manual_seed(0)
    result = run(config, module=Words(), out=tmp_path / "run", progress=False)
    assert result.summary["final_accuracy"] > 0.85
    shown = CliRunner().invoke(app, ["data", "inspect", str(config_file(tmp_path, config))])
    assert "11 tokens" in shown.output
    assert "largest token" in shown.output


def test_stacked_tokens_give_the_gradients_of_single_clients(tmp_path: Path) -> None:
    data = read(folder(tmp_path / "data", text(80, 0)))
    models = []
    for stack in (0, 4):
        torch.manual_seed(0)
        config = small(rounds=2, blocks={"count": 1}, local={"stack": stack}, model={"dtype": "float64"})
        models.append(
            run(config, module=Words().double(), dataset=data, out=tmp_path / str(stack), progress=False).model
        )
    for one, many in zip(*(model.state_dict().values() for model in models), strict=True):
        assert torch.allclose(one, many, rtol=0, atol=1e-12)


def test_integer_inputs_for_a_model_of_numbers_give_one_line() -> None:
    x = np.arange(60).reshape(20, 3)
    with pytest.raises(ConfigError, match="integer inputs are tokens; use floats, or uint8") as caught:
        run(small(), dataset=(x, x[:, 0] % 2, x, x[:, 0] % 2), progress=False)
    assert "\n" not in str(caught.value)


def config_file(tmp_path: Path, config: Config) -> Path:
    path = tmp_path / "c.toml"
    path.write_text(config.to_toml())
    return path
