"""The console script, and `python -m raybcgd` for where the package is sent rather than installed."""

import os
import signal
import sys


def main() -> None:
    """Run a command. Importing torch takes seconds, in which Ctrl-C has nothing to end yet."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # as for what a shell runs in the background
        signal.signal(signal.SIGINT, _leave)
    from raybcgd.cli import main as run

    signal.signal(signal.SIGINT, before)
    run()


def _leave(*_: object) -> None:
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(130)


if __name__ == "__main__":
    main()
