"""Two jobs run on one cluster at the same time without affecting each other."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from raybcgd.experiment import run
from raybcgd.submit import SubmittedJob, follow, submit
from tests.conftest import small
from tests.ray.heads import Head, head

pytestmark = pytest.mark.ray

TABLES = {"rounds": 150, "local": {"stack": 0}, "evaluation": {"every": 10}, "checkpoint": {"every": 50}}


@pytest.fixture
def cluster() -> Iterator[Head]:
    """A head with room for three hosts. Each job requests two."""
    with head("--num-cpus=3", "--num-gpus=0") as started:
        yield started


@pytest.mark.slow
def test_two_jobs_run_at_the_same_time(cluster: Head, tmp_path: Path) -> None:
    config = tmp_path / "small.toml"
    config.write_text(small(**TABLES, engine="ray", hosts={"max_count": 2}).to_toml())
    jobs = [submit(config, address=cluster.dashboard) for _ in range(2)]
    logs: dict[SubmittedJob, list[str]] = {job: [] for job in jobs}
    assert [follow(job, logs[job].append) for job in jobs] == [0, 0], logs
    folders = [Path(job.folder.replace("~", str(cluster.home))) for job in jobs]
    assert sorted(folders) == cluster.runs()
    # A run writes its config again after its first round: both did so before either run ended.
    first_rounds = [(folder / "config.toml").stat().st_mtime for folder in folders]
    assert max(first_rounds) < min((folder / "summary.json").stat().st_mtime for folder in folders)
    expected = run(small(**TABLES), out=tmp_path / "local").summary["sha256"]
    for job, folder in zip(jobs, folders, strict=True):
        assert json.loads((folder / "summary.json").read_text())["sha256"] == expected
        assert len((folder / "rounds.jsonl").read_text().splitlines()) == TABLES["rounds"]
        assert "round 150/150" in "".join(logs[job])
