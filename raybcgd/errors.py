"""The errors that a user can fix. Any other exception is a bug and shows its traceback."""

import traceback


class ConfigError(ValueError):
    """A setting, file or data set is wrong. The message is one line that names it and the fix."""


class RunError(RuntimeError):
    """A correctly configured run cannot continue. The message is one line that says where and why."""


class DivergedError(RunError):
    """The model or an upload is not finite any more. A result of the settings, unlike the other errors of a run."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message without its full stop, or the error's class name."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def named_line(error: BaseException) -> str:
    """Return the error's class name and the first line of its message."""
    return f"{type(error).__name__}: {first_line(error)}"


def located_line(error: BaseException) -> str:
    """Return the error's class name, the first line of its message, and where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{named_line(error)} ({where.filename.rpartition('/')[2]}:{where.lineno})"


def last_line(error: BaseException) -> str:
    """Return the last line of an error's message, where Ray puts the cause."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
