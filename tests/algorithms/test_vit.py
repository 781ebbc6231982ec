"""One round of FedBCGD on ViT-Base/16 with the paper's six cuts: traffic, peak memory and time on the CPU."""

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
@pytest.mark.parametrize("clients", [2, 6])
def test_a_round_of_vit_base_uploads_one_cut_and_the_head(
    clients: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], record_property: Any
) -> None:
    """With two clients, two of the six cuts and the head change; with six, all cuts do."""
    command = [sys.executable, "-m", "tests.algorithms.vit_round", str(tmp_path), str(clients)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout.splitlines()[-1])
    record_property("peak_bytes", answer["peak_bytes"])
    with capsys.disabled():
        print(f"\nViT-Base/16, a round of {clients} clients: peak memory {answer['peak_bytes'] / 1e9:.1f} GB, ", end="")
        print(f"{answer['seconds']:.0f} s")
    assert answer["blocks"] == [CUT] * 6
    assert answer["shared"] == SHARED
    assert answer["clients"] == clients
    assert answer["upload_bytes"] == clients * 4 * (CUT + SHARED), "every client uploads one cut and the head"
    *cuts, head = answer["upload_floats_by_block"]
    assert sorted(cuts) == [0] * (6 - clients) + [CUT] * clients
    assert head == clients * SHARED
    assert answer["moved"] == [*(bool(floats) for floats in cuts), True]
    assert answer["finite"]
    assert answer["peak_bytes"] < 8e9
