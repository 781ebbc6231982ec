"""The interface of a federated method: its hyper-parameters, what it keeps and sends, and its rules.

A complete method, FedAvgM on block uploads:

    class Mine(Algorithm):
        \"""Mine (Doe et al., 2026): every client uploads one block, and the server adds momentum.\"""

        name: ClassVar[str] = "mine"
        momentum: float = 0.9

        class Server(NamedTuple):
            x: Whole
            v: Annotated[Whole, Momentum]

        class Down(NamedTuple):
            x: Whole

        class Upload(NamedTuple):
            delta: Annotated[OwnBlock, Displacement]

        def client_rule(self, work, down, mine):
            x = down.x
            y = work.sgd(x)
            return self.Upload(delta=y - x), mine

        def server_rule(self, server, total, rnd):
            v = self.momentum * server.v + total.delta
            return self.Server(x=server.x + v, v=v)

A round, with d model coordinates divided into blocks, and D data phases:

1. `broadcast(server, rnd)` makes the `Down` that every sampled client receives.
2. `client_rule(work, down, mine)` trains locally, and returns the upload and the client's new state as whole vectors.
   The declared coordinates of the upload are encoded and sent.
3. `terms(sent, down, task)` converts the decoded upload to the terms that the server aggregates. Client and server
   both call it, on the uploaded coordinates only, so that they get bit-identical terms.
4. `settle(mine, terms)` completes the client's state, on the uploaded coordinates only.
5. The server averages each coordinate of the terms over the clients that sent it, or sums it if the field is
   `Summed`. `server_rule(server, total, rnd)` returns the next server state. Coordinates that no client uploaded
   keep their values, and buffers such as batch-norm statistics become x + the mean displacement.
6. If `candidates(server, rnd)` returns models, the participants report their mean losses, and
   `choose(server, losses, rnd)` returns the server state. Sending the models and the losses counts as traffic.

Fields are declared by annotation. Slicing, encoding, counting, aggregation and storage follow from the declaration:

    Whole        [d]      every coordinate
    OwnBlock              the client's block and the shared block     in Upload and Terms
    SharedBlock           the shared block                            in Upload, Terms and Down
    Scalar       [1]      one float
    PerPhase     [D, d]   one vector per data phase                   in Server and Client
    PhaseCounts  [D]      one int64 per data phase                    in Server and Client
    Count        [1]      one int64                                   in Server and Client

    Annotated[..., Displacement]     the client's y_T - x: mark exactly one field of the terms
    Annotated[..., Summed]           summed over the clients, not averaged
    Annotated[..., Momentum]         the server vector whose norm is recorded as the momentum: at most one field
    Annotated[..., ControlVariate]   the server vector whose norm is recorded as the control variate: at most one field

A `SharedBlock` of `Down` reaches the client rule as a whole vector; only its shared block counts as traffic.
Wrong declarations, and rules with wrong parameters, raise a TypeError when the class is created.

Rules are pure functions. They may run on a stack of clients, with one more leading dimension, so they index from the
end: `v[..., s]`, and `mine.past[..., work.data_phase, :]` for a `PerPhase` field.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from raybcgd.algorithms.contract import (
    ControlVariate,
    Count,
    Displacement,
    Kind,
    Momentum,
    OwnBlock,
    PerPhase,
    PhaseCounts,
    Scalar,
    SharedBlock,
    Summed,
    Whole,
    check,
    declared,
    zeros,
)
from raybcgd.algorithms.settings import AlgorithmConfig

__all__ = [
    "Algorithm",
    "ControlVariate",
    "Count",
    "Direction",
    "Displacement",
    "Momentum",
    "Nothing",
    "OwnBlock",
    "PerPhase",
    "PhaseCounts",
    "Round",
    "Scalar",
    "SharedBlock",
    "Summed",
    "Task",
    "Whole",
    "Work",
]

Direction = Callable[[Tensor, Tensor], Tensor]
"""(gradient, y) -> direction. A local step subtracts eta times the direction from y."""


@dataclass(frozen=True)
class Task:
    """Facts about a client's local training, known to both the client and the server."""

    steps: int | Tensor
    """T, the number of local steps. In a stack: a float64 column with one row per client."""
    lr: float
    """eta of this round."""
    trained: Tensor | None
    """1 on parameters and 0 on buffers, for the coordinates of the vectors in use. None: all are parameters."""
    shared: slice
    """The shared block within these coordinates."""

    def mean_gradient(self, delta: Tensor) -> Tensor:
        """Return (x - y_T)/(T eta) from delta = y_T - x: the mean direction along the local path. Zero on buffers."""
        length = self.steps * self.lr
        gradient = delta / -(length.to(delta) if isinstance(length, Tensor) else length)
        return gradient if self.trained is None else gradient * self.trained


class Work(Protocol):
    """A client's local training, as the rules see it: gradients and steps on flat vectors."""

    lr: float
    """eta of this round."""
    data_phase: int
    """The current data phase. 0 if the data is not block-cyclic."""
    trained: Tensor | None
    """1 on parameters, 0 on buffers such as batch-norm statistics. None: all coordinates are parameters. A rule that
    adds something to y_T - x multiplies it by this, because a changed running variance can become negative."""

    @property
    def own(self) -> Tensor:
        """1 on the client's block and the shared block, 0 elsewhere."""

    @property
    def shared(self) -> Tensor:
        """1 on the shared block, 0 elsewhere."""

    def sgd(
        self,
        x: Tensor,
        direction: Direction | None = None,
        *,
        shift: Tensor | None = None,
        momentum: float | Tensor = 0.0,
        variance_reduced: bool = False,
    ) -> Tensor:
        """Return y_T after the round's local steps y <- y - eta direction(g, y), from y = x.

        With `variance_reduced`, g is g(y; batch) - g(x; batch) + the full gradient at x. With `shift`, a constant such
        as c - c_i is added to every g.
        """

    def mean_gradient(self, delta: Tensor) -> Tensor:
        """Return (x - y_T)/(T eta) from delta = y_T - x: the mean direction along the local path. Zero on buffers."""

    def full_gradient(self, x: Tensor) -> Tensor:
        """Return the gradient of the client's loss at x over the samples of a pass, with weight decay.

        Zero on buffers. With `local.drop_last`, only samples in full batches count.
        """

    def loss(self, x: Tensor) -> Tensor:
        """Return the client's mean loss at x, a `Scalar`."""


@dataclass(frozen=True)
class Round:
    """Facts about a round for the server rule."""

    index: int
    clients: int
    """M, the total number of clients."""
    lr: float
    """eta of this round."""
    steps: float
    """T, the number of local steps, averaged over the cohort."""
    data_phase: int = 0
    """The current data phase. 0 if the data is not block-cyclic."""
    blocks: int = 1
    """N, the number of blocks."""
    shared: slice = field(default_factory=lambda: slice(0, 0))
    """The shared block."""


class Nothing(NamedTuple):
    """An empty state: the client keeps nothing between rounds."""


class Algorithm(AlgorithmConfig):
    """Base class of all methods. A subclass declares the tuples and implements the client rule and the server rule.

    If hyper-parameters select one of several uploads or terms, end the names of these tuples in "Upload" or "Terms"
    (`SentUpload`, `DerivedTerms`) and override `upload_type` or `terms_type`.
    """

    name: ClassVar[str]
    """The method's name in tables and folders. If a subclass of a method does not set it, it is the class name."""

    Server: ClassVar[type[Any]]
    """The server's state. `x` is the global model."""
    Client: ClassVar[type[Any]] = Nothing
    """A client's state between rounds."""
    Down: ClassVar[type[Any]]
    """The broadcast. `x` is where local training starts."""
    Upload: ClassVar[type[Any]]
    """What a client sends."""
    Terms: ClassVar[type[Any] | None] = None
    """What the server aggregates. None: the upload."""
    fixed_batches: ClassVar[bool] = False
    """Whether all epochs of a round use the same batches, in a new order per epoch."""
    pooled: ClassVar[bool] = False
    """Whether a single client holds the data of all clients."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if hasattr(cls, "name") and "name" not in vars(cls):  # tables and folders must tell it from its base class
            cls.name = cls.__name__
        check(cls, Algorithm)

    def server_init(self, x: Tensor, phases: int = 1) -> Any:
        """Return the server's state before round 0. Default: x, and zeros in every other field."""
        return zeros(self.Server, x, phases)._replace(x=x)

    def client_init(self, x: Tensor, phases: int = 1) -> Any:
        """Return a client's state before its first round; x only provides size and type. Default: zeros."""
        return zeros(self.Client, x, phases)

    def broadcast(self, server: Any, rnd: Round) -> Any:
        """Return what every sampled client receives. Default: the server's fields of the same names."""
        return self.Down(*(getattr(server, name) for name in self.Down._fields))

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        """Train locally, and return the upload and the client's new state."""
        raise NotImplementedError

    def terms(self, sent: Any, down: Any, task: Task) -> Any:
        """Return the terms that the server aggregates for one client, from the decoded upload. Default: the upload.

        Vectors contain only the uploaded coordinates, so treat every coordinate independently.
        """
        return sent

    def settle(self, mine: Any, terms: Any) -> Any:
        """Return the client's state after its upload. Default: unchanged.

        Vectors contain only the uploaded coordinates; the others keep the values that `client_rule` returned.
        """
        return mine

    def server_rule(self, server: Any, total: Any, rnd: Round) -> Any:
        """Return the server's next state, from the aggregated terms."""
        raise NotImplementedError

    def candidates(self, server: Any, rnd: Round) -> tuple[Tensor, ...]:
        """Return models whose loss the participants report at the end of the round. Default: none."""
        return ()

    def choose(self, server: Any, losses: tuple[float, ...], rnd: Round) -> Any:
        """Return the server's state after the round, given the participants' mean loss of each candidate."""
        return server

    def models(self, server: Any) -> tuple[Tensor, ...]:
        """Return the models to evaluate: one, or one per data phase."""
        return (server.x,)

    def lr_at(self, round_index: int) -> float:
        """Return eta of a round. Default: as `lr_schedule` says."""
        if self.lr_schedule == "exponential":
            return self.lr * self.lr_decay**round_index
        if self.lr_schedule == "multistep":
            return self.lr * self.lr_decay ** sum(round_index >= milestone for milestone in self.lr_milestones)
        if self.lr_schedule == "cosine":
            assert self.lr_rounds is not None
            progress = min(round_index, self.lr_rounds - 1) / self.lr_rounds  # below 1, so that eta stays positive
            return self.lr * (1 + math.cos(math.pi * progress)) / 2
        return self.lr

    @property
    def upload_type(self) -> type[Any]:
        """The upload tuple that the hyper-parameters select."""
        return self.Upload

    @property
    def terms_type(self) -> type[Any]:
        """The tuple of terms that the hyper-parameters select."""
        return self.Terms or self.upload_type

    @property
    def blockwise(self) -> bool:
        """Whether clients upload only their own block."""
        return any(field.kind is Kind.OWN for field in declared(self.upload_type))
