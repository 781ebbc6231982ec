"""`raybcgd watch`: the report of runs in progress, in a browser."""

from pathlib import Path
from typing import Annotated

import typer

from raybcgd.cli.shared import Target, check_target, exits_cleanly, print_line
from raybcgd.errors import ConfigError
from raybcgd.report.watch import LivePage, live_server


@exits_cleanly
def watch(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Folders of runs, comparisons or sweeps, finished or not.")
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1. 0: any free port.")] = 8000,
    every: Annotated[int, typer.Option(min=1, help="Seconds between reloads.")] = 5,
    target: Target = None,
) -> None:
    """Serve the report of runs in progress on this machine, and update it as rounds finish."""
    check_target(target)
    for folder in folders:
        if folder.is_file():
            raise ConfigError(f"{folder} is a file; pass the folder of a run")
        if not folder.exists():
            print_line(f"waiting for {folder}, which does not exist yet")
    with live_server(LivePage(folders, target), port, every) as server:
        print_line(f"open http://127.0.0.1:{server.server_address[1]}; stop with Ctrl-C")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print_line("stopped")
