"""`raybcgd export`: the rounds of runs as one table."""

from pathlib import Path
from typing import Annotated

import typer

from raybcgd.cli.shared import exits_cleanly, print_line
from raybcgd.errors import ConfigError, first_line


@exits_cleanly
def export(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders of runs, comparisons or sweeps.")],
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write a CSV file.")] = None,
    parquet: Annotated[Path | None, typer.Option("--parquet", metavar="FILE", help="Write a Parquet file.")] = None,
) -> None:
    """Write the rounds of runs to one table: a row per run and round, with the run's label, method, seed and folder.

    The column `evaluated_on` says whether accuracy and loss are those of test or validation data.
    """
    import pandas  # slow to import

    from raybcgd.opened import Run
    from raybcgd.report.failures import failed_runs

    if csv is None and parquet is None:
        raise ConfigError("nothing to write; add --csv FILE or --parquet FILE")
    runs, frames = Run.open_all(*folders), []
    for run in runs:
        frame, settings = run.frame(), run.settings
        frame.insert(0, "evaluated_on", settings.get("data", {}).get("evaluate_on", "test"))
        frame.insert(0, "folder", str(run.folder))
        frame.insert(0, "seed", settings.get("seed", 0))
        frame.insert(0, "method", settings.get("algorithm", {}).get("name"))
        frame.insert(0, "run", run.label)
        frames.append(frame)
    table = pandas.concat(frames, ignore_index=True)
    for path, write in ((csv, table.to_csv), (parquet, table.to_parquet)):
        if path is None:
            continue
        try:
            write(path, index=False)
        except OSError as error:
            reason = error.strerror or first_line(error)  # some of pandas' errors have no errno
            raise ConfigError(f"cannot write {path} ({reason}); choose another file") from None
        count = "1 run" if len(frames) == 1 else f"{len(frames)} runs"
        print_line(f"written: {path} ({len(table):,} row{'s' * (len(table) != 1)} of {count})")
    written = {run.folder for run in runs}
    if missing := [run.label for run in failed_runs(folders) if run.folder not in written]:
        print_line(f"left out, because they failed before their first round: {', '.join(missing)}")
