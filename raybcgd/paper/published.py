"""The types of the catalogue: a published number, and an experiment of a paper with its config."""

import math
from dataclasses import dataclass
from typing import Literal

NEVER = math.inf
"""The target was never reached within the budget."""

Measure = Literal["last_tenth", "best", "round"]
"""Which accuracy a paper reports: the mean over the last tenth of the rounds, the best one, or that of one round."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a published table, or the end of a published curve. Numbers that were not published are None."""

    label: str
    """The method as in the table."""
    accuracy: float | None = None
    """In percent."""
    highest: float | None = None
    """The upper end, if the paper gives a range of accuracies that starts at `accuracy`."""
    deviation: float | None = None
    """In percentage points."""
    upload_d: float | None = None
    """Upload of one client to the target, in d. `NEVER`: not within the budget."""
    rounds: float | None = None
    """Rounds to the target. `NEVER`: not within the published number of rounds."""
    runs: tuple[str, ...] = ()
    """Labels of the runs in the config. Of several, the best one on the validation data counts. Default: `label`."""
    note: str = ""

    @property
    def run_labels(self) -> tuple[str, ...]:
        """The labels of the runs to compare with."""
        return self.runs or (self.label,)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of a paper, or the part of it that one config runs."""

    paper: str
    name: str
    """The number of the table or figure, such as table2."""
    model: str
    data: str
    rho: float | None
    """The Dirichlet parameter. None: other partitions, or several values."""
    config: str
    """Path under jobs/configs."""
    about: str
    """What the table or figure shows."""
    rows: tuple[Row, ...] = ()
    """Empty: the paper gives no numbers."""
    measure: Measure = "last_tenth"
    round: int | None = None
    """With measure = "round": the number of rounds after which the accuracy counts."""

    @property
    def title(self) -> str:
        """The experiment in words."""
        where = f"{self.model} on {self.data}" + ("" if self.rho is None else f", Dirichlet {self.rho:g}")
        return f"{self.paper} {self.name}: {self.about}, {where}"
