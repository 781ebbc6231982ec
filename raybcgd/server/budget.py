"""The budget of a run: what it has spent, and how many rounds it can afford."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from raybcgd.config.schema import Config
from raybcgd.problem import Problem
from raybcgd.record.rounds import RoundRecord
from raybcgd.record.summary import qualities
from raybcgd.server.settings import BudgetConfig, since_best

_ROUNDING = 1e-9
"""Relative error of a sum over rounds: 0.1 d times ten rounds may be slightly less than 1 d."""


class Spent(NamedTuple):
    """What the rounds so far have cost, in the units of `[budget]`."""

    upload_d: float = 0.0
    upload_bytes: int = 0
    simulated_seconds: float = 0.0

    @classmethod
    def on(cls, records: Iterable[RoundRecord]) -> "Spent":
        """Return the cost of some rounds."""
        spent = cls()
        for record in records:
            spent = spent.plus(record)
        return spent

    def plus(self, record: RoundRecord) -> "Spent":
        """Return the cost with one more round."""
        traffic = record.traffic
        return Spent(
            self.upload_d + traffic.upload_d,
            self.upload_bytes + traffic.upload_bytes,
            self.simulated_seconds + (traffic.simulated_seconds or 0.0),
        )

    def reaches(self, budget: BudgetConfig) -> str | None:
        """Return which limit is reached, or None."""
        for name in self._fields:
            limit = getattr(budget, name)
            if limit is not None and getattr(self, name) >= limit * (1 - _ROUNDING):
                return f"budget.{name} = {limit:,}, which is spent"
        return None


def ended_by(config: Config, records: Sequence[RoundRecord]) -> str | None:
    """Return why a run ended before `rounds`: the limit of `[budget]`. None if no limit is reached."""
    if len(records) >= config.rounds:
        return None
    return Spent.on(records).reaches(config.budget) or config.budget.enough(qualities(records))


def limits_to_raise(config: Config, records: Sequence[RoundRecord]) -> str:
    """Return every limit that a finished run has reached, with the value that it must exceed to continue the run."""
    budget, spent, found = config.budget, Spent.on(records), qualities(records)
    reached: dict[str, float] = {"rounds": len(records)} if len(records) >= config.rounds else {}
    for name in spent._fields:
        if spent.reaches(BudgetConfig(**{name: getattr(budget, name)})):
            reached[f"budget.{name}"] = getattr(spent, name)
    if BudgetConfig(target_accuracy=budget.target_accuracy).enough(found):
        reached["budget.target_accuracy"] = found[-1]
    if BudgetConfig(patience=budget.patience).enough(found):
        reached["budget.patience"] = since_best(found)
    return " and ".join(f"{name} above {_rounded_up(value)}" for name, value in reached.items())


def _rounded_up(value: float) -> str:
    """Return a number with at most four decimals."""
    return str(value) if isinstance(value, int) else f"{math.ceil(round(value * 1e4, 4)) / 1e4:.12g}"


def expected_rounds(problem: Problem) -> int:
    """Return the number of rounds that `rounds` and the limits on uploads allow, if every sampled client takes part.

    The simulated time and the accuracy are not known in advance, so limits on them are ignored.
    """
    config, wire = problem.config, problem.wire
    blocks = range(problem.num_blocks) if problem.algorithm.blockwise else (None,)
    upload_bytes = sum(wire.upload(block).bytes for block in blocks) / len(blocks)
    rounds = [config.rounds]
    if config.budget.upload_d is not None:
        rounds.append(_ceil(config.budget.upload_d * 4 * problem.layout.size / upload_bytes))
    if config.budget.upload_bytes is not None:
        rounds.append(_ceil(config.budget.upload_bytes / (upload_bytes * problem.cohort_size)))
    return min(rounds)


def _ceil(rounds: float) -> int:
    return max(1, math.ceil(rounds * (1 - _ROUNDING)))
