"""Methods with lossy uploads: invariants that stay exact, and convergence."""

from typing import Any

import numpy as np
import pytest
import torch

from raybcgd.algorithms import ALGORITHMS
from raybcgd.algorithms.contract import Kind, declared

QSGD = {"codec": "qsgd", "levels": 7, "bucket": 32}
TOPK = {"codec": "topk", "fraction": 0.2}
CODECS = {"qsgd": QSGD, "topk": TOPK, "bf16": {"codec": "bf16"}}


@pytest.mark.parametrize("stack", [0, 16])
@pytest.mark.parametrize("name", ["fedavg", "fedbcgd", "fedbcgd+", "scaffold", "feddc"])
def test_topk_with_all_values_equals_no_codec(lab: Any, name: str, stack: int) -> None:
    changes = {"rounds": 4, "local": {"stack": stack}, "algorithm": {"name": name}}
    plain = lab.play(changes)
    for wire in ({"codec": "topk", "fraction": 1.0},) if stack else ({"codec": "topk", "k": 10**6},):
        everything = lab.play({**changes, "wire": wire})
        assert all(torch.equal(a, b) for a, b in zip(plain.xs, everything.xs, strict=True))
        assert plain.uploads == everything.uploads
        assert not any(v.any() for client in everything.clients for k, v in client.items() if k.startswith("codec."))


@pytest.mark.parametrize("wire", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize(
    ("name", "control_upload"),
    [
        ("fedbcgd+", "derived"),
        ("fedbcgd+", "sent"),
        ("scaffold", "derived"),
        ("scaffold", "sent"),
        ("fedpvr", "derived"),
    ],
)
def test_c_stays_the_mean_of_the_clients_under_a_lossy_codec(
    lab: Any, name: str, control_upload: str, wire: dict[str, Any]
) -> None:
    played = lab.play(
        {
            "rounds": 15,
            "model": {"dtype": "float64"},
            "wire": wire,
            "algorithm": {"name": name, "lr": 0.02, "control_upload": control_upload},
        }
    )
    ci = played.kept("algorithm.c")
    assert np.abs(ci).max() > 0
    np.testing.assert_allclose(played.server.c.numpy(), ci.mean(axis=0), rtol=0, atol=1e-12 * np.abs(ci).max())


@pytest.mark.parametrize("wire", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_method_works_with_every_codec(lab: Any, name: str, wire: dict[str, Any]) -> None:
    played = lab.play({"rounds": 2, "wire": wire, "algorithm": {"name": name, "lr": 0.02}})
    assert not torch.equal(played.x, played.start)
    fields = declared(played.problem.config.algorithm.upload_type)
    losses = 2 if name == "mc_psgd" else 0  # of the two candidates
    scalars = sum(field.kind is Kind.SCALAR for field in fields) + losses
    for result, upload in zip(played.rounds, played.uploads, strict=True):
        assert sum(upload.by_block) == upload.floats - scalars * len(result.participants)
        encoded = sum(played.problem.wire.upload(p.block).bytes for p in result.participants)
        assert upload.bytes == encoded + 4 * losses * len(result.participants)


def test_upload_d_counts_bytes_so_that_compression_is_visible(lab: Any) -> None:
    plain, lossy = (
        lab.play({"rounds": 1, "algorithm": {"name": "fedavg"}, "wire": wire}).rounds[0].traffic
        for wire in ({}, {"codec": "qsgd", "levels": 7, "bucket": 512})
    )
    assert plain.upload_d == 1.0
    assert lossy.upload_floats == plain.upload_floats
    assert lossy.upload_d == lossy.upload_bytes / plain.upload_bytes < 0.2


@pytest.mark.parametrize("wire", [{"codec": "qsgd", "levels": 127}, TOPK, {"codec": "bf16"}], ids=CODECS)
def test_fedavg_learns_from_a_fraction_of_the_bytes(lab: Any, wire: dict[str, Any]) -> None:
    """FedAvg with QSGD is FedPAQ."""
    changes = {"rounds": 25, "algorithm": {"name": "fedavg"}}
    plain, lossy = lab.play(changes), lab.play({**changes, "wire": wire})
    final, first = (np.mean([p.loss for p in r.participants]) for r in (lossy.rounds[-1], lossy.rounds[0]))
    reference = np.mean([p.loss for p in plain.rounds[-1].participants])
    assert final < 0.7 * first
    assert final < 1.5 * reference
    assert lossy.uploads[0].bytes < 0.55 * plain.uploads[0].bytes


@pytest.mark.usefixtures("recording")
def test_the_same_seed_gives_the_same_bits_for_every_stack_size(lab: Any) -> None:
    runs = [
        lab.play({"rounds": 3, "wire": QSGD, "local": {"stack": stack}, "algorithm": {"name": "fedbcgd+"}}).x
        for stack in (1, 3, 16)
    ]
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])
