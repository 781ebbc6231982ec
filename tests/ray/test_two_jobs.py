"""Two jobs on one cluster at the same time: each to its own end, as if the other were not there."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.job_submission import JobSubmissionClient

from raybcgd import run
from raybcgd.submit import Job, follow, submit
from tests.conftest import small
from tests.ray.heads import Head, head

pytestmark = pytest.mark.ray

ROUNDS = 30


@pytest.fixture
def cluster() -> Iterator[Head]:
    """Room for two hosts, of which each job would like both."""
    with head("--num-cpus=2", "--num-gpus=0") as started:
        yield started


def test_two_jobs_do_not_disturb_each_other(cluster: Head, tmp_path: Path) -> None:
    config = tmp_path / "small.toml"
    config.write_text(small(engine="ray", rounds=ROUNDS, local={"stack": 0}, hosts={"max_count": 2}).to_toml())
    jobs = [submit(config, address=cluster.dashboard) for _ in range(2)]
    logs: dict[Job, list[str]] = {job: [] for job in jobs}
    assert [follow(job, logs[job].append) for job in jobs] == [0, 0], logs
    folders = [Path(job.folder.replace("~", str(cluster.home))) for job in jobs]
    assert sorted(folders) == cluster.runs()
    expected = run(small(rounds=ROUNDS, local={"stack": 0}), out=tmp_path / "local").summary["sha256"]
    for job, folder in zip(jobs, folders, strict=True):
        assert json.loads((folder / "summary.json").read_text())["sha256"] == expected
        assert len((folder / "rounds.jsonl").read_text().splitlines()) == ROUNDS
        assert f"round {ROUNDS}/{ROUNDS}" in "".join(logs[job])
    client = JobSubmissionClient(cluster.dashboard)
    infos = [client.get_job_info(job.id) for job in jobs]
    assert max(info.start_time for info in infos) < min(info.end_time for info in infos)  # they were there together
