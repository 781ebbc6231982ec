"""The record of a round, built from its results."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from raybcgd.messages import Outcome
from raybcgd.plan.cohort import Member
from raybcgd.plan.links import simulated_seconds
from raybcgd.problem import Problem
from raybcgd.record.rounds import Blocks, Dropped, Participant, Quality, RoundRecord, Timing, Traffic
from raybcgd.server.candidates import second_exchange
from raybcgd.server.norms import block_norms, proportional, server_norms
from raybcgd.server.planning import RoundPlan
from raybcgd.server.pool import PoolReport
from raybcgd.wire.upload import total


@dataclass(frozen=True)
class FinishedRound:
    """The results of a committed round. Its record is built on demand, so that the next round need not wait for it."""

    problem: Problem
    plan: RoundPlan
    outcomes: Mapping[int, Outcome]
    """By client, for the whole cohort."""
    drift_diversity: tuple[float | None, ...]
    models: tuple[Tensor, Any]
    """x before the round, and the server's state after it."""
    upload_d_before: float
    candidates: int
    """Number of models whose loss the participants reported."""
    report: PoolReport
    state_disk_bytes: int
    laps: Mapping[str, float]
    """Seconds per stage."""

    @property
    def index(self) -> int:
        """The round's index."""
        return self.plan.orders.round_index

    @cached_property
    def record(self) -> RoundRecord:
        """The record without evaluation."""
        problem, plan = self.problem, self.plan
        layout, (before, server) = plan.wire.layout, self.models
        trained = problem.trained_on(server.x.device)
        floats_up, bytes_up, floats_down = self._costs[1]
        blocks = Blocks(
            upload_floats=floats_up,
            upload_bytes=bytes_up,
            download_floats=floats_down,
            **server_norms(problem.algorithm, server, layout, trained),
            drift_diversity=self.drift_diversity,
            movement=block_norms(server.x - before, layout, trained),
            edges=plan.orders.edges,
        )
        participants = tuple(_participant(member, outcome) for member, outcome in self._present)
        losses = [math.inf if participant.loss is None else participant.loss for participant in participants]
        lost = [(member, self.outcomes[member.client].error) for member in plan.cohort]
        return RoundRecord(
            round=self.index,
            lr=plan.orders.lr,
            data_phase=plan.orders.data_phase,
            participants=participants,
            dropped=tuple(Dropped(**member._asdict(), reason=error) for member, error in lost if error),
            quality=Quality(train_loss=float(np.mean(losses)) if losses else None),
            traffic=self.traffic,
            blocks=blocks,
            timing=self._timing(),
            hosts=self.report.hosts.model_copy(update={"state_disk_bytes": self.state_disk_bytes}),
        )

    @property
    def traffic(self) -> Traffic:
        """Uploads and downloads in total."""
        return self._costs[0]

    @cached_property
    def _present(self) -> list[tuple[Member, Outcome]]:
        """The clients that took part."""
        answers = [(member, self.outcomes[member.client]) for member in self.plan.cohort]
        return [(member, outcome) for member, outcome in answers if not outcome.error]

    def _timing(self) -> Timing:
        broadcast, laps = self.report.broadcast_seconds, self.laps
        # The clock counts the pool's part of the broadcast as training.
        corrected = {"broadcast": laps["broadcast"] + broadcast, "train": max(0.0, laps["train"] - broadcast)}
        return Timing(seconds=sum(laps.values()), stage_seconds={**laps, **corrected})

    @cached_property
    def _costs(self) -> tuple[Traffic, tuple[tuple[int, ...], ...]]:
        """The traffic in total, and per block: floats and bytes of uploads, floats of downloads."""
        problem, plan, present = self.problem, self.plan, self._present
        wire, links = plan.wire, problem.config.cohort.links
        uploads = [outcome.traffic or wire.upload(member.block) for member, outcome in present]
        losses, models = second_exchange(wire, self.candidates, len(present))
        upload, download = total([*uploads, losses]), total([*[wire.download] * len(plan.cohort), models])
        upload_d = upload.bytes / (4 * len(plan.cohort) * problem.layout.size)
        per_block = Counter(member.block for member, _ in present)
        uncoded = sum(count * wire.uncoded_bytes(block) for block, count in per_block.items())
        simulated = None
        if links is not None and problem.uplinks is not None:
            rates = [float(problem.uplinks[member.client]) for member, _ in present]
            # The second exchange has the same size for all participants.
            uploaded = [one.bytes + losses.bytes // len(present) for one in uploads]
            downloaded = wire.download.bytes + (models.bytes // len(present) if present else 0)
            simulated = simulated_seconds(links, rates, uploaded, downloaded)
        traffic = Traffic(
            upload_floats=upload.floats,
            upload_bytes=upload.bytes,
            upload_d=upload_d,
            upload_d_total=self.upload_d_before + upload_d,
            download_floats=download.floats,
            download_bytes=download.bytes,
            compression_ratio=uncoded / upload.bytes if upload.bytes else 1.0,
            simulated_seconds=simulated,
        )
        return traffic, (upload.by_block, proportional(upload.bytes, upload.by_block), download.by_block)


def _participant(member: Member, outcome: Outcome) -> Participant:
    loss = outcome.loss if math.isfinite(outcome.loss) else None
    return Participant(client=member.client, block=member.block, seconds=outcome.seconds, loss=loss)
