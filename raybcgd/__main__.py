"""The console script, and `python -m raybcgd`, which works even if the package is not installed."""

import os
import signal
import sys

from raybcgd.lazy import garbage_kept

_LONG = ("train", "resume", "compare", "sweep", "paper")
"""The commands that show progress."""


def main() -> None:
    """Run a command. While torch is imported, which takes seconds, Ctrl-C exits without a traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # shells ignore Ctrl-C for background processes
        signal.signal(signal.SIGINT, _exit)
    erase = _show_start(sys.argv[1:])
    with garbage_kept():
        from raybcgd.cli import main as run

    sys.stdout.write(erase)
    sys.stdout.flush()
    signal.signal(signal.SIGINT, before)
    run()


def _show_start(arguments: list[str]) -> str:
    """Show at once that a long command has started. Return the text that erases this on a terminal."""
    quiet = any("json" in argument or argument == "--help" for argument in arguments)
    if quiet or len(arguments) < 2 or arguments[0] not in _LONG:
        return ""
    terminal = sys.stdout.isatty()
    sys.stdout.write("loading PyTorch …" if terminal else "loading PyTorch …\n")
    sys.stdout.flush()
    return "\r\x1b[K" if terminal else ""


def _exit(*_: object) -> None:
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(130)


if __name__ == "__main__":
    # `python -m` puts the current folder first. It goes last, so that its files cannot shadow libraries.
    if not sys.flags.safe_path:
        sys.path.append(sys.path.pop(0))
    main()
