"""Messages between the coordinator and the client hosts."""

from typing import NamedTuple

import numpy as np


class StateRef(NamedTuple):
    """A committed client state: its version and the checksum of its file."""

    version: int
    checksum: int


FRESH = StateRef(-1, 0)
"""The state of a client that has not taken part yet."""


class ClientTask(NamedTuple):
    """One client's work in a round."""

    client: int
    block: int | None
    """The block to upload in addition to the shared block. None: the method uploads everything."""
    state: StateRef = FRESH


class RoundOrders(NamedTuple):
    """The settings that all tasks of a round share."""

    round_index: int
    lr: float
    """eta of this round."""
    data_phase: int = 0
    """The phase of block-cyclic data. 0 without phases."""
    edges: tuple[int, ...] | None = None
    """The edges of the blocks. None: those of the config."""


class HostLoad(NamedTuple):
    """Memory that a host uses after a call."""

    state_memory_bytes: int = 0
    """Client states in host memory."""
    device_memory_bytes: int | None = None
    """Peak memory on the accelerator; None on a CPU."""


class Outcome(NamedTuple):
    """The result of a client task: an encoded upload and a new state, or an error."""

    client: int
    payload: np.ndarray | None
    state: StateRef
    seconds: float
    loss: float
    error: str | None = None
    load: HostLoad = HostLoad()


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
