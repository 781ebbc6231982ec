"""Uploads as slices and bytes, traffic counts, and the residuals of error feedback."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raybcgd.algorithms.settings import ALGORITHMS
from raybcgd.config import load_config, make_config
from raybcgd.errors import ConfigError, RunError
from raybcgd.model.blocks import divide
from raybcgd.model.settings import BlocksConfig
from raybcgd.wire import QSGD, Codec, Raw, TopK
from raybcgd.wire.upload import Wire, put, take


def wire(name: str, codec: Codec, **settings: Any) -> Wire:
    """Return a wire format with blocks of 4, 4 and 5 coordinates and a shared block of 3."""
    layout = divide(nn.Linear(15, 1), BlocksConfig(division="equal", count=3, shared=3))
    assert [block.size for block in layout.all_blocks] == [4, 4, 5, 3]
    return Wire(ALGORITHMS.resolve(name)(**settings), layout, codec, torch.float64)


def test_put_inverts_take() -> None:
    vector, slices = torch.arange(10.0), (slice(1, 3), slice(7, 10))
    assert take(vector, slices).tolist() == [1, 2, 7, 8, 9]
    assert take(vector, ()).tolist() == []
    target = torch.zeros(10)
    put(target, slices, take(vector, slices))
    assert target.tolist() == [0, 1, 2, 0, 0, 0, 0, 7, 8, 9]


def test_an_upload_of_the_wrong_size_is_rejected() -> None:
    with pytest.raises(RunError, match="63 bytes instead of 64"):
        wire("fedbcgd", Raw()).decode(np.zeros(63, dtype=np.uint8), 2)


def test_error_feedback_loses_nothing_and_changes_only_uploaded_coordinates() -> None:
    """Over several rounds and blocks, sent values plus residuals equal the requested values."""
    w, rng = wire("fedbcgd+", TopK(k=2), control_upload="sent"), np.random.default_rng(0)
    residuals = w.initial_residuals()
    assert set(residuals) == {"codec.delta", "codec.dc"}
    requested, received = torch.zeros(2, 16).double(), torch.zeros(2, 16).double()
    for step in range(12):
        block = step % 3
        delta, dc = torch.from_numpy(rng.standard_normal((2, 16)))
        own = torch.zeros(16, dtype=torch.bool)
        for s in w.layout.own(block):
            own[s] = True
        values = w.add_residuals(w.select(w._type(delta=delta, dc=dc), block), residuals, block)
        payload = w.encode(values, rng)
        sent = w.decode(payload, block)
        before, residuals = residuals, w.updated_residuals(values, sent, residuals, block)
        for row, (name, vector) in enumerate((("delta", delta), ("dc", dc))):
            requested[row, own] += vector[own]
            part = torch.zeros(16).double()
            put(part, w.layout.own(block), getattr(sent, name))
            assert int((part != 0).sum()) == 2
            received[row] += part
            np.testing.assert_array_equal(residuals[f"codec.{name}"][~own], before[f"codec.{name}"][~own])
    unsent = np.stack([residuals["codec.delta"], residuals["codec.dc"]])
    np.testing.assert_allclose(received.numpy() + unsent, requested.numpy(), atol=1e-13)


def test_codecs_without_error_feedback_have_no_residuals() -> None:
    w = wire("fedavg", QSGD())
    assert w.initial_residuals() == {}
    values = {"delta": torch.ones(16).double()}
    assert w.add_residuals(values, {}, None) == values
    assert w.updated_residuals(values, None, {}, None) == {}


def test_selected_values_are_counted_in_their_block() -> None:
    w = wire("fedavg", TopK(k=3))
    values = torch.zeros(16).double()
    values[[5, 9, 15]] = 1.0
    payload = w.encode({"delta": values}, np.random.default_rng(0))
    traffic = w.upload(None, payload)
    assert traffic.floats == 3
    assert traffic.bytes == payload.nbytes == 3 * 8 + 2
    assert traffic.by_block == (0, 1, 1, 1)
    block = wire("fedbcgd", TopK(k=3))
    payload = block.encode({"delta": torch.tensor([0, 0, 2, 0, 0, 1, 0, 3.0]).double()}, np.random.default_rng(0))
    assert block.upload(2, payload).by_block == (0, 0, 1, 2)


def test_downloads_are_counted_raw_for_every_codec() -> None:
    for codec in (Raw(), QSGD(), TopK()):
        assert wire("scaffold", codec).download.bytes == 2 * 16 * 8
        assert wire("fedpvr", codec).download.floats == 16 + 3


@pytest.mark.parametrize(
    "table",
    [{"codec": "raw"}, {"codec": "bf16"}, {"codec": "qsgd", "levels": 7, "bucket": 64}, {"codec": "topk", "k": 5}, {}],
)
def test_a_config_with_a_codec_round_trips(tmp_path: Any, table: dict[str, Any]) -> None:
    config = make_config({"wire": table})
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    assert load_config(path) == config
    assert config.wire.codec == table.get("codec", "raw")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"codec": "gzip"}, 'wire.codec = "gzip" is unknown'),
        ({"codec": "qsgd", "levels": 0}, "wire.levels = 0"),
        ({"codec": "qsgd", "level": 3}, "wire.level is not a setting of qsgd; did you mean levels"),
        ({"codec": "topk", "k": 1, "fraction": 0.1}, "set k or fraction, not both"),
        ({"levels": 3}, "wire.levels is not a setting of raw"),
    ],
)
def test_an_invalid_codec_gives_a_one_line_error_that_names_the_setting(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_config({"wire": table})
    assert message in str(error.value)
    assert "\n" not in str(error.value)
