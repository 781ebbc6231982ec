"""FedBCGD on ViT-Base/16: the paper's six cuts, one round on the CPU, and what it takes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CUT = 14_299_520
SHARED = 2 * 768 + 768 * 200 + 200
"""The final norm, and the head for the 200 classes of Tiny ImageNet."""
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_round_of_vit_base_uploads_one_cut_and_the_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], record_property: Any
) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.algorithms.vit_round", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout.splitlines()[-1])
    record_property("peak_bytes", answer["peak_bytes"])
    with capsys.disabled():
        print(f"\nViT-Base/16, one round of 6 clients: peak memory {answer['peak_bytes'] / 1e9:.1f} GB, ", end="")
        print(f"{answer['seconds']:.0f} s")
    assert answer["blocks"] == [CUT] * 6
    assert answer["shared"] == SHARED
    assert answer["clients"] == 6
    assert answer["upload_bytes"] == 6 * 4 * (CUT + SHARED), "every client uploads one cut and the head"
    assert answer["upload_floats_by_block"] == [*[CUT] * 6, 6 * SHARED]
    assert all(answer["moved"])
    assert answer["finite"]
    assert answer["peak_bytes"] < 8e9
