"""A wrong input: what a user does, and the line that answers it."""

from dataclasses import dataclass

from tests.wrong.files import Prepare, write

CODE = "tests.wrong.code"
METHODS = "tests.wrong.methods"


def nothing(_: object) -> None:
    """Prepare nothing."""


@dataclass(frozen=True)
class Case:
    """A command and its answer. {tmp}, {config}, {out} and {run} stand for paths."""

    arguments: tuple[str, ...]
    says: str
    """The error. Any text can be at " … ", and at the end."""
    code: int = 2
    prepare: Prepare = nothing


def sets(*settings: str, says: str, code: int = 2, prepare: Prepare = nothing) -> Case:
    """Train with these settings."""
    given = [part for text in settings for part in ("--set", text)]
    return Case(("train", "{config}", "--out", "{out}", *given), says, code, prepare)


def text(content: str | bytes, *, says: str) -> Case:
    """Train with a config file of this content."""
    return Case(("train", "{tmp}/own.toml", "--out", "{out}"), says, prepare=write("own.toml", content))


def data(prepare: Prepare, *, says: str, source: str = "parquet", settings: tuple[str, ...] = ()) -> Case:
    """Train on wrong files."""
    return sets(f"data.source={source}", "data.root={tmp}/data", *settings, says=says, prepare=prepare)


def model(name: str, *, says: str, code: int = 2) -> Case:
    """Train a wrong model."""
    return sets(f"model.name={CODE}:{name}", "model.options={}", "blocks.count=1", says=says, code=code)


def resume(prepare: Prepare, *, says: str, arguments: tuple[str, ...] = (), code: int = 2) -> Case:
    """Resume a wrong run folder."""
    return Case(("resume", "{run}", *arguments), says, code, prepare)


def report(prepare: Prepare, *, says: str, arguments: tuple[str, ...] = ()) -> Case:
    """Report on a wrong run folder."""
    return Case(("report", "{run}", *arguments), says, prepare=prepare)
