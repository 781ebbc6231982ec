"""The errors that a user can fix. Any other exception is a bug and shows its traceback."""

import os
import sysconfig
import traceback

_LIBRARIES = tuple(os.path.join(folder, "") for folder in (sysconfig.get_path("stdlib"), os.path.dirname(__file__)))
"""Folders of code that is not the user's: Python and raybcgd."""
_INSTALLED = ("/site-packages/", "/dist-packages/")
"""Folders of installed packages: those of the environment, of the user and of the system."""


class ConfigError(ValueError):
    """A setting, file or data set is wrong. The message is one line that names it and the fix."""


class RunError(RuntimeError):
    """A correctly configured run cannot continue. The message is one line that says where and why."""


class DivergedError(RunError):
    """The model or an upload is no longer finite. Unlike other run errors, this one is caused by the settings."""


class ContractError(RunError):
    """A method or a codec does not do what it declares. This is a fault of its code, not of a client."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message without its full stop, or the error's class name."""
    if type(error).__module__.startswith("pydantic") and (details := getattr(error, "errors", None)) is not None:
        return str(details()[0]["msg"])  # its own first line only counts the errors
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def named_line(error: BaseException) -> str:
    """Return the error's class name and the first line of its message."""
    return f"{type(error).__name__}: {first_line(error)}"


def located_line(error: BaseException) -> str:
    """Return the error's class name, the first line of its message, and where it was raised.

    The location is the last line of the user's own code, if the error passed through any. Our own errors need none.
    """
    if isinstance(error, (ConfigError, RunError)) and not raised_by_user(error):
        return named_line(error)
    where = (_own_frames(error) or traceback.extract_tb(error.__traceback__))[-1]
    return f"{named_line(error)} ({where.filename.rpartition('/')[2]}:{where.lineno})"


def own_line(error: BaseException) -> str:
    """Return `located_line` if the error passed through the user's own code, otherwise `named_line`."""
    return located_line(error) if _own_frames(error) else named_line(error)


def raised_by_user(error: BaseException) -> bool:
    """Return whether the statement that raised the error is in the user's own code."""
    return _own_frames(error)[-1:] == traceback.extract_tb(error.__traceback__)[-1:]


def _own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [
        frame
        for frame in frames
        if not frame.filename.startswith(("<frozen", *_LIBRARIES)) and not any(i in frame.filename for i in _INSTALLED)
    ]


def last_line(error: BaseException) -> str:
    """Return the last line of an error's message, where Ray puts the cause."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
