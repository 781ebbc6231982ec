"""CKA compared with its definition, and between the client models of a round."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from raybcgd import run
from raybcgd.analysis.analyst import Analyst
from raybcgd.analysis.cka import gram, layer_outputs, linear_cka, mean_similarity, model_cka
from raybcgd.model.flat import FlatModel
from raybcgd.problem import prepare
from raybcgd.storage import RunFolder
from tests.conftest import small


@pytest.mark.parametrize(("p", "q"), [(3, 5), (60, 8), (100, 90)])
def test_cka_is_the_papers_formula(p: int, q: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, p)), rng.standard_normal((40, q)) + rng.standard_normal((40, 1))
    xc, yc = x - x.mean(0), y - y.mean(0)
    formula = np.linalg.norm(yc.T @ xc) ** 2 / (np.linalg.norm(xc.T @ xc) * np.linalg.norm(yc.T @ yc))
    assert linear_cka(gram(torch.from_numpy(x)), gram(torch.from_numpy(y))) == pytest.approx(formula, rel=1e-9)


def test_cka_ignores_rotation_scale_and_shift_and_is_low_for_independent_features() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 10, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(10, 10, dtype=torch.float64)).Q
    assert linear_cka(gram(x), gram(3 * x @ rotation + 7)) == pytest.approx(1.0, abs=1e-12)
    assert linear_cka(gram(x), gram(torch.randn(200, 10, dtype=torch.float64))) < 0.1
    assert linear_cka(gram(x), gram(torch.ones(200, 4))) == 0.0


def test_layers_are_those_of_the_layout() -> None:
    convolution = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 10))
    problem, _ = prepare(small(blocks={"count": 1}), convolution)
    flat = FlatModel(problem.module(), problem.layout, problem.dtype, torch.device("cpu"))
    flat.module.eval()
    inputs = torch.zeros(4, *problem.input_shape)
    outputs = layer_outputs(flat, inputs)
    assert list(outputs) == [layer.name for layer in problem.layout.order]
    assert all(len(output) == 4 and output.dim() == 2 for output in outputs.values())
    torch.testing.assert_close(outputs[problem.layout.order[-1].name], flat.module(inputs))
    assert not any(module._forward_hooks for module in flat.module.modules())


def test_equal_models_are_similar_and_the_flat_model_stays_unchanged() -> None:
    problem, _ = prepare(small())
    flat = FlatModel(problem.module(), problem.layout, problem.dtype, torch.device("cpu"))
    before = flat.vector.clone()
    torch.manual_seed(0)
    inputs = torch.randn(30, *problem.input_shape)
    matrices = model_cka(flat, [before, before + 0.3 * torch.randn_like(before), before], inputs)
    for matrix in matrices.values():
        assert torch.allclose(matrix, matrix.T)
        assert torch.allclose(matrix.diagonal(), torch.ones(3))
        assert matrix[0, 2] == pytest.approx(1.0)
        assert matrix[0, 1] < 0.999
        assert mean_similarity(matrix) == pytest.approx(float(matrix[0, 1] * 2 + matrix[0, 2]) / 3)
    assert torch.equal(flat.vector, before)
    assert flat.module.training


@pytest.mark.parametrize("stack", [0, 16])
def test_client_models_are_those_that_the_next_round_averages(tmp_path: Path, stack: int) -> None:
    """With FedAvg, the mean of the whole cohort's models is the next global model."""
    config = small(rounds=2, algorithm={"name": "fedavg", "lr": 0.1}, local={"stack": stack})
    run(config, out=tmp_path / "run")
    problem, data = prepare(config)
    models = Analyst(problem, data, RunFolder(tmp_path / "run")).client_models(100)
    assert len(models) == 6
    longer = run(config.model_copy(update={"rounds": 3}), out=tmp_path / "longer")
    flat = FlatModel(longer.model, problem.layout, problem.dtype, torch.device("cpu"))
    torch.testing.assert_close(torch.stack(models).mean(0), flat.vector, rtol=1e-5, atol=1e-6)


def test_client_models_of_a_block_method_are_whole_and_no_file_changes(tmp_path: Path) -> None:
    config = small(rounds=4)
    run(config, out=tmp_path / "run")
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    problem, data = prepare(config)
    analyst = Analyst(problem, data, RunFolder(tmp_path / "run"))
    matrices = analyst.cka(3, 100)
    assert {len(matrix) for matrix in matrices.values()} == {3}
    for model in analyst.client_models(3):
        for block in problem.layout.all_blocks:
            assert not torch.equal(model[block.slice], analyst.state.server.x[block.slice])
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == files


def test_uneven_labels_make_client_models_less_similar(tmp_path: Path) -> None:
    similarity = {}
    for kind, settings in (("even", {"kind": "iid"}), ("uneven", {"kind": "dirichlet", "rho": 0.05})):
        config = small(
            rounds=3,
            data={"partition": {**settings, "clients": 20}},
            algorithm={"name": "fedavg", "lr": 0.1},
            local={"epochs": 3},
        )
        run(config, out=tmp_path / kind)
        problem, data = prepare(config)
        matrices = Analyst(problem, data, RunFolder(tmp_path / kind)).cka(4, 200)
        similarity[kind] = mean_similarity(list(matrices.values())[-1])
    assert similarity["uneven"] < similarity["even"] - 0.1
