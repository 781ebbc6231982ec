"""Messages between the coordinator and the client hosts."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class StateRef(NamedTuple):
    """A client state: a row of a segment file, and the CRC-32 of the row."""

    segment: str
    row: int
    checksum: int


FRESH = StateRef("", -1, 0)
"""The state of a client that has not taken part yet."""


class ClientTask(NamedTuple):
    """One client's work in a round."""

    client: int
    block: int | None
    """The block to upload in addition to the shared block. None: the method uploads everything."""
    state: StateRef = FRESH
    weight: float = 1.0
    """Weight in means, at most 1."""


class RoundOrders(NamedTuple):
    """The settings that all tasks of a round share."""

    round_index: int
    lr: float
    """eta of this round."""
    data_phase: int = 0
    """The phase of block-cyclic data. 0 without phases."""
    edges: tuple[int, ...] | None = None
    """The edges of the blocks. None: those of the config."""
    cohort: int = 1
    """Number of clients of the round, which limits the number of addends of a sum."""
    measure_drift: bool = False
    """Also sum the squared displacements."""
    reduce: bool = False
    """Add up the uploads on the host. False: return every upload as bytes."""


class HostLoad(NamedTuple):
    """Memory that a host uses after a call."""

    state_memory_bytes: int = 0
    """Client states in host memory."""
    device_memory_bytes: int | None = None
    """Peak memory of tensors on the accelerator; None on a CPU."""
    device_reserved_bytes: int | None = None
    """Peak memory that torch reserved on the accelerator, including its cache; None on a CPU."""
    device: str = ""
    """The kind of device."""


class Traffic(NamedTuple):
    """Cost of one or several uploads or downloads."""

    floats: int
    """Values sent, at any precision."""
    bytes: int
    """All bytes sent, including indices and norms."""
    by_block: tuple[int, ...]
    """Floats per block, the shared block last."""


class Outcome(NamedTuple):
    """The result of a client task: an upload and a new state, or an error."""

    client: int
    payload: np.ndarray | None
    """The encoded upload. None if the host added it to its partial sum, or if the task failed."""
    state: StateRef
    seconds: float
    loss: float
    error: str | None = None
    diverged: bool = False
    """Whether the error is an upload with non-finite values."""
    breaks_contract: bool = False
    """Whether the error is a fault of the method or the codec, and not of the client."""
    traffic: Traffic | None = None
    """Cost of the upload, if it depends on the values."""


class SumKey(NamedTuple):
    """One sum of a round: a piece of a named vector."""

    name: str
    segment: int
    """Number of a block. -1: the whole vector."""
    piece: int = 0
    """Long segments are cut into pieces, so that a host can free its sums while it sends them."""


class Partial(NamedTuple):
    """Exact sums over the uploads of some clients."""

    clients: tuple[int, ...]
    sums: Mapping[SumKey, Mapping[int, np.ndarray]]
    """Each is split into levels, see `aggregation/exact.py`."""


class HostLost(NamedTuple):
    """Why a host cannot continue. Its partial sum is lost."""

    clients: tuple[int, ...]
    """The clients that it was training when it failed."""
    cause: str


class CallResult(NamedTuple):
    """The result of a training call: one outcome per task, in order."""

    outcomes: list[Outcome]
    load: HostLoad
    partial: Partial | None = None
    """Everything that the host added up since it last returned a partial sum, if the call asked for it."""
    lost: HostLost | None = None
    """Set if the host cannot continue. Then there are no outcomes."""


class Piece(NamedTuple):
    """A range of test samples, or of a client's training samples, to evaluate one model on."""

    model: int
    start: int
    stop: int
    client: int | None = None
    """The client whose training samples are used. None: the test samples of the model's data phase."""
    data_phase: int = 0
    """The data phase of the training samples."""


class Score(NamedTuple):
    """The result of evaluating a piece."""

    correct: int
    loss: float
    samples: int
    metrics: tuple[float, ...] = ()
    """Sums of the values of `evaluation.metrics`."""
    squared_error: float = math.nan
    """Sum of the squared errors of a regression."""
