"""Step-size schedules."""

from typing import Any

import pytest
import torch

from raybcgd import ConfigError
from raybcgd.algorithms import FedAvg
from tests.conftest import small


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"lr_decay": 0.5}, [0.8, 0.4, 0.2, 0.1, 0.05]),
        ({"lr_schedule": "constant", "lr_decay": 0.5}, [0.8] * 5),
        ({"lr_schedule": "multistep", "lr_decay": 0.1, "lr_milestones": (2, 4)}, [0.8, 0.8, 0.08, 0.08, 0.008]),
        ({"lr_schedule": "cosine", "lr_rounds": 4}, [0.8, 0.682842712, 0.4, 0.117157288, 0.117157288]),
    ],
)
def test_the_step_size_of_each_round(lab: Any, settings: dict[str, Any], expected: list[float]) -> None:
    assert [FedAvg(lr=0.8, **settings).lr_at(r) for r in range(5)] == pytest.approx(expected)
    played = lab.play({"rounds": 3, "algorithm": {"name": "fedavg", "lr": 0.08, **settings}})
    assert [record.lr for record in played.rounds] == pytest.approx([lr / 10 for lr in expected[:3]])
    assert bool(torch.isfinite(played.x).all())


def test_an_incomplete_schedule_is_refused() -> None:
    for schedule, missing in (("multistep", "lr_milestones"), ("cosine", "lr_rounds")):
        with pytest.raises(ConfigError, match=f'algorithm.*"{schedule}" needs {missing}'):
            small(algorithm={"name": "fedavg", "lr_schedule": schedule})
