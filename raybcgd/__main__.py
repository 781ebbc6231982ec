"""The console script, and `python -m raybcgd`, which works even if the package is not installed."""

import os
import signal
import sys


def main() -> None:
    """Run a command. While torch is imported, which takes seconds, Ctrl-C exits without a traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # shells ignore Ctrl-C for background processes
        signal.signal(signal.SIGINT, _exit)
    from raybcgd.cli import main as run

    signal.signal(signal.SIGINT, before)
    run()


def _exit(*_: object) -> None:
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(130)


if __name__ == "__main__":
    # `python -m` puts the current folder first. It goes last, so that its files cannot shadow libraries.
    if not sys.flags.safe_path:
        sys.path.append(sys.path.pop(0))
    main()
