"""Which runs of a comparison in progress have finished."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from raybcgd.record.comparison import read_plan
from raybcgd.record.lock import in_use
from raybcgd.report.failures import FailedRun
from raybcgd.storage import RunFolder


def finished_lines(paths: Sequence[Path], failed: Sequence[FailedRun]) -> Iterator[str]:
    """Yield a line per comparison with runs that have neither finished nor failed."""
    lost = {one.folder for one in failed}
    for path in paths:
        plan = read_plan(path)
        folders = [] if plan is None else [path / run.folder for run in plan.runs]
        finished = [folder for folder in folders if RunFolder(folder).summary.exists() and not in_use(folder)]
        if any(folder not in lost for folder in folders if folder not in finished):
            where = f"{path}: " if len(paths) > 1 else ""
            yield f"{where}{len(finished)} of {len(folders)} runs have finished."
