"""`raybcgd methods`: the values of `algorithm.name`."""

from rich.table import Table

from raybcgd.algorithms.contract import size_in_d, summary
from raybcgd.algorithms.settings import ALGORITHMS
from raybcgd.cli.shared import exits_cleanly, out

_BLOCKS, _SHARED = 5, 0.02
_OWN = (1 - _SHARED) / _BLOCKS + _SHARED


@exits_cleanly
def methods() -> None:
    """List the methods: paper, idea, and what a client uploads, downloads and stores."""
    table = Table()
    table.add_column("name")
    table.add_column("method", ratio=1)
    for heading in ("upload", "download", "state"):
        table.add_column(heading, justify="right")
    for name in ALGORITHMS:
        kind = ALGORITHMS.resolve(name)
        words = summary(kind)
        paper = f" ({words.paper})" if words.paper else ""
        sizes = [size_in_d(fields, _OWN, _SHARED) for fields in (kind().upload_type, kind.Down, kind.Client)]
        table.add_row(name, f"{words.title}{paper}: {words.idea}", *(f"{round(size, 2):g}" for size in sizes))
    out.print(table)
    out.print(
        "In units of the model size d: upload and download per participant and round, and client state between rounds. "
        f"Assumes default settings, {_BLOCKS} equal blocks and a shared block of {_SHARED:.0%} of d.",
        highlight=False,
    )
