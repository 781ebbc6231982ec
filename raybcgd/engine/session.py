"""The interface between a run and its engine."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from raybcgd.problem import Data, Problem
from raybcgd.record.rounds import RoundRecord
from raybcgd.storage import RunFolder


class Announcer(Protocol):
    """Called with the name of each step that takes seconds, such as "starting Ray", and again for its details."""

    def __call__(self, step: str, detail: str = "") -> None:
        """Announce a step, or the progress of the current one."""


def ignore(step: str, detail: str = "") -> None:
    """Announce nothing."""


def training(rounds_before: int) -> str:
    """Return the name of the last step before the first record."""
    return f"training the {'next' if rounds_before else 'first'} rounds"


def resuming(rounds: int) -> str:
    """Return the name of the step that resumes a run after some rounds."""
    return f"resuming from round {rounds}"


class Session(Protocol):
    """A run in progress on an engine."""

    def records(self, announce: Announcer = ignore) -> Iterator[RoundRecord]:
        """Run the remaining rounds and yield their records. A round that is repeated is yielded twice."""

    def models(self) -> list[np.ndarray]:
        """Return the final models: one, or one per data phase."""

    def close(self) -> None:
        """Stop the hosts."""


class Engine(Protocol):
    """Where rounds run."""

    def running(self, address: str | None, announce: Announcer) -> AbstractContextManager[None]:
        """Keep the engine up for the sessions inside the `with` block."""

    def open(self, problem: Problem, data: Data, folder: RunFolder, resume: bool) -> Session:
        """Start or resume a run."""
