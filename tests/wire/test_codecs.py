"""Codecs: the decoded values, and the exact payload size."""

from math import ceil, log2

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from raybcgd.wire import CODECS, QSGD, BFloat16, Codec, Raw, TopK
from raybcgd.wire.bits import pack, packed_bytes, unpack

lengths = st.integers(0, 200)
dtypes = st.sampled_from([torch.float32, torch.float64])
seeds = st.integers(0, 2**32)
codecs = st.one_of(
    st.just(Raw()),
    st.just(BFloat16()),
    st.builds(QSGD, levels=st.integers(1, 300), bucket=st.integers(1, 70)),
    st.builds(TopK, k=st.integers(1, 250)),
    st.builds(TopK, fraction=st.floats(0.001, 1)),
)


def random(length: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(-8, 8)
    return torch.from_numpy(rng.standard_normal(length) * scale).to(dtype)


@given(numbers=st.lists(st.integers(0, 2**17 - 1), max_size=60), spare=st.integers(0, 5))
def test_unpack_inverts_pack(numbers: list[int], spare: int) -> None:
    bits = max(numbers, default=0).bit_length() + spare
    packed = pack(np.array(numbers, dtype=np.int64), bits)
    assert packed.nbytes == packed_bytes(len(numbers), bits) == ceil(len(numbers) * bits / 8)
    assert unpack(packed, len(numbers), bits).tolist() == numbers


@given(codec=codecs, length=lengths, dtype=dtypes, seed=seeds)
def test_every_payload_has_the_declared_size(codec: Codec, length: int, dtype: torch.dtype, seed: int) -> None:
    values = random(length, dtype, seed)
    payload = codec.encode(values, np.random.default_rng(seed))
    assert payload.dtype == np.uint8
    assert payload.nbytes == codec.size(length, dtype)
    decoded = codec.decode(payload, length, dtype)
    assert decoded.shape == (length,)
    assert decoded.dtype == dtype
    unaligned = np.concatenate([np.zeros(1, np.uint8), payload])[1:]
    assert torch.equal(codec.decode(unaligned, length, dtype), decoded)


@given(length=lengths, dtype=dtypes, seed=seeds)
def test_raw_is_exact_and_bf16_rounds_to_nearest(length: int, dtype: torch.dtype, seed: int) -> None:
    values = random(length, dtype, seed)
    rng = np.random.default_rng(0)
    assert torch.equal(Raw().decode(Raw().encode(values, rng), length, dtype), values)
    half = BFloat16().decode(BFloat16().encode(values, rng), length, dtype)
    assert bool(((half - values).abs() <= values.abs() * 2.0**-8).all())
    assert BFloat16().size(length, dtype) == 2 * length


@given(levels=st.integers(1, 300), bucket=st.integers(1, 70), length=lengths, dtype=dtypes, seed=seeds)
def test_qsgd_decodes_the_quantised_values_exactly(
    levels: int, bucket: int, length: int, dtype: torch.dtype, seed: int
) -> None:
    codec = QSGD(levels=levels, bucket=bucket)
    values = random(length, dtype, seed)
    payload = codec.encode(values, np.random.default_rng(seed))
    assert payload.nbytes == ceil(length / bucket) * dtype.itemsize + ceil(length * ceil(log2(2 * levels + 1)) / 8)
    norms, signed = codec.quantise(values.numpy(), np.random.default_rng(seed))
    assert np.abs(signed).max(initial=0) <= levels
    decoded = codec.decode(payload, length, dtype).numpy()
    for b, start in enumerate(range(0, length, bucket)):
        part = slice(start, start + bucket)
        assert norms[b] == pytest.approx(np.linalg.norm(values.numpy()[part].astype(np.float64)), rel=1e-6)
        unit = signed[part].astype(norms.dtype) / norms.dtype.type(levels)
        np.testing.assert_array_equal(decoded[part], norms[b] * unit)
        # A value is rounded to one of its two neighbouring levels.
        assert bool((np.abs(decoded[part] - values.numpy()[part]) <= norms[b] / levels * (1 + 1e-5)).all())
    assert bool((decoded * values.numpy() >= 0).all())


@pytest.mark.parametrize(("levels", "bucket"), [(1, 40), (7, 16), (127, 512)])
def test_qsgd_is_unbiased(levels: int, bucket: int) -> None:
    values = torch.from_numpy(np.random.default_rng(1).standard_normal(40)).float()
    codec, rng, draws = QSGD(levels=levels, bucket=bucket), np.random.default_rng(2), 4000
    sample = np.stack([codec.decode(codec.encode(values, rng), 40, torch.float32).numpy() for _ in range(draws)])
    error = sample.std(axis=0, ddof=1) / draws**0.5
    assert bool((np.abs(sample.mean(axis=0) - values.numpy()) <= 4 * error + 1e-6).all())


def test_qsgd_preserves_zeros_and_non_finite_buckets() -> None:
    codec, rng = QSGD(levels=3, bucket=4), np.random.default_rng(0)
    values = torch.tensor([0.0, 0, 0, 0, 1, float("nan"), 2, 3, 1, float("inf"), 2, 3, 5])
    decoded = codec.decode(codec.encode(values, rng), 13, torch.float32)
    assert decoded[:4].tolist() == [0.0] * 4
    assert not bool(torch.isfinite(decoded[4:8]).any())
    assert not bool(torch.isfinite(decoded[8:12]).all())
    assert decoded[12] == 5


@given(k=st.integers(1, 250), length=lengths, dtype=dtypes, seed=seeds)
@settings(max_examples=60)
def test_topk_sends_the_largest_values_unchanged(k: int, length: int, dtype: torch.dtype, seed: int) -> None:
    codec = TopK(k=k)
    values = random(length, dtype, seed)
    payload = codec.encode(values, np.random.default_rng(0))
    decoded = codec.decode(payload, length, dtype)
    sent = min(k, length)
    assert codec.values(length) == sent
    indices = codec.positions(payload, length, dtype)
    if sent == length:
        assert indices is None
        assert payload.nbytes == length * dtype.itemsize
        assert torch.equal(decoded, values)
        return
    assert indices is not None
    assert len(set(indices.tolist())) == sent
    assert payload.nbytes == sent * dtype.itemsize + ceil(sent * ceil(log2(length)) / 8)
    assert torch.equal(decoded[indices], values[indices])
    assert int((decoded != 0).sum()) == int((values[indices] != 0).sum())
    assert decoded.abs().sort(descending=True).values[:sent].tolist() == (
        values.abs().sort(descending=True).values[:sent].tolist()
    )


def test_topk_sends_nan() -> None:
    values = torch.tensor([1.0, float("nan"), 5.0, 0.1])
    decoded = TopK(k=1).decode(TopK(k=1).encode(values, np.random.default_rng(0)), 4, torch.float32)
    assert bool(decoded[1].isnan())


def test_topk_accepts_k_or_fraction() -> None:
    assert TopK(fraction=0.1).values(50) == 5
    assert TopK(fraction=0.1).values(3) == 1
    assert TopK().values(1000) == 10
    assert TopK(k=7).values(5) == 5
    assert TopK().values(0) == 0
    with pytest.raises(ValidationError, match="not both"):
        TopK(k=1, fraction=0.5)


def test_every_codec_knows_its_name() -> None:
    assert all(CODECS.resolve(name)().codec == name for name in CODECS)
