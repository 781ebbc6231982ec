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

A round, for d model coordinates, cut into blocks, and D data phases:

1. `broadcast(server, rnd)` makes the `Down` that every sampled client receives.
2. `client_rule(work, down, mine)` trains, and returns the upload and the client's new state, on whole vectors.
   The declared coordinates of the upload are encoded and sent.
3. `terms(sent, down, task)` turns what was transmitted into what the server aggregates. Client and server both call
   it, on the uploaded coordinates only, so that both know the result to the bit.
4. `settle(mine, terms)` finishes the client's state, on the uploaded coordinates only.
5. The server averages each field of the terms over the clients that sent a coordinate, or adds them up if the field
   is `Summed`. `server_rule(server, total, rnd)` returns its next state. Coordinates that no client uploaded keep
   their values, and buffers such as batch-norm statistics become x + the mean displacement.

Fields are declared by annotation. Slicing, encoding, counting, aggregation and storage follow from the declaration:

    Whole        [d]      every coordinate
    OwnBlock              the client's block and the shared block     in Upload and Terms
    SharedBlock           the shared block                            in Upload, Terms and Down
    Scalar       [1]      one float
    PerPhase     [D, d]   one vector per data phase                   in Server and Client
    PhaseCounts  [D]      one int64 per data phase                    in Server and Client
    Count        [1]      one int64                                   in Server and Client

    Annotated[..., Displacement]     the client's y_T - x: one field of the terms has this mark
    Annotated[..., Summed]           added up over the clients, not averaged
    Annotated[..., Momentum]         a server vector whose norm is recorded as the momentum
    Annotated[..., ControlVariate]   a server vector whose norm is recorded as the control variate

A `SharedBlock` of `Down` reaches the client rule as a whole vector; only its shared block counts as traffic.
Wrong declarations raise a TypeError when the class is created.

Rules are pure functions. They may run on a stack of clients, with one more leading dimension, so they index from the
end: `v[..., s]`, and `mine.past[..., work.data_phase, :]` for a `PerPhase` field.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
"""(gradient, y) -> the vector that a local step subtracts from y, times the step size."""


@dataclass(frozen=True)
class Task:
    """The facts about a client's local training that client and server both know."""

    steps: int | Tensor
    """T, the local steps. In a stack: a float64 column with one row per client."""
    lr: float
    """eta of this round."""
    trained: Tensor | None
    """1 on parameters and 0 on buffers, on the coordinates at hand. None: all are parameters."""
    shared: slice
    """The shared block, among the coordinates at hand."""

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
        momentum: float | Tensor = 0.0,
        variance_reduced: bool = False,
    ) -> Tensor:
        """Return y_T after the round's local steps y <- y - eta direction(g, y), from y = x.

        With `variance_reduced`, g is g(y; batch) - g(x; batch) + the full gradient at x.
        """

    def mean_gradient(self, delta: Tensor) -> Tensor:
        """Return (x - y_T)/(T eta) from delta = y_T - x: the mean direction along the local path. Zero on buffers."""

    def full_gradient(self, x: Tensor) -> Tensor:
        """Return the gradient of the client's loss at x over all of its samples. Zero on buffers."""

    def loss(self, x: Tensor) -> Tensor:
        """Return the client's mean loss at x, a `Scalar`."""


@dataclass(frozen=True)
class Round:
    """What the server rule may know about a round."""

    index: int
    clients: int
    """M, the number of clients in total."""
    lr: float
    """eta of this round."""
    steps: float
    """T, averaged over the cohort."""
    data_phase: int = 0
    """The current data phase. 0 if the data is not block-cyclic."""


class Nothing(NamedTuple):
    """The state of a client that keeps none."""


class Algorithm(AlgorithmConfig):
    """Base class of every method. Declare the tuples, and write the client rule and the server rule.

    If hyper-parameters choose among several uploads or terms, end the names of these tuples in "Upload" or "Terms"
    (`SentUpload`, `DerivedTerms`) and override `upload_type` or `terms_type`.
    """

    name: ClassVar[str]
    """The value of `algorithm.name` in a config."""

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
    """Whether a batch keeps its samples through the epochs of a round."""
    pooled: ClassVar[bool] = False
    """Whether a single client holds the data of all clients."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        check(cls, Algorithm)

    def server_init(self, x: Tensor, phases: int = 1) -> Any:
        """Return the server's state before round 0. Default: x, and zeros in every other field."""
        return zeros(self.Server, x, phases)._replace(x=x)

    def client_init(self, x: Tensor, phases: int = 1) -> Any:
        """Return a client's state before its first round; x only gives size and type. Default: zeros."""
        return zeros(self.Client, x, phases)

    def broadcast(self, server: Any, rnd: Round) -> Any:
        """Return what every sampled client receives. Default: the server's fields of the same names."""
        return self.Down(*(getattr(server, name) for name in self.Down._fields))

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        """Train locally; return the upload and the client's new state."""
        raise NotImplementedError

    def terms(self, sent: Any, down: Any, task: Task) -> Any:
        """Return what the server aggregates for one client, from what was transmitted. Default: the upload.

        All arguments are on the uploaded coordinates only, so treat every coordinate independently.
        """
        return sent

    def settle(self, mine: Any, terms: Any) -> Any:
        """Return the client's state after its upload. Default: unchanged.

        Vectors are on the uploaded coordinates only; elsewhere they keep what `client_rule` returned.
        """
        return mine

    def server_rule(self, server: Any, total: Any, rnd: Round) -> Any:
        """Return the server's next state, from the aggregated terms."""
        raise NotImplementedError

    def models(self, server: Any) -> tuple[Tensor, ...]:
        """Return the models to evaluate: one, or one per data phase."""
        return (server.x,)

    def lr_at(self, round_index: int) -> float:
        """Return eta of a round."""
        return self.lr * self.lr_decay**round_index

    @property
    def upload_type(self) -> type[Any]:
        """The upload that these hyper-parameters choose."""
        return self.Upload

    @property
    def terms_type(self) -> type[Any]:
        """The terms that these hyper-parameters choose."""
        return self.Terms or self.upload_type

    @property
    def blockwise(self) -> bool:
        """Whether each client uploads a block of its own."""
        return any(field.kind is Kind.OWN for field in declared(self.upload_type))
