"""What an algorithm is: frozen hyper-parameters, a client rule and a server rule, and small named tuples.

The tuples say what exists and what travels. A field of `Upload` is declared by how much of the flat vector it
carries, so slicing, encoding, reducing and counting are written once, elsewhere:

    class Upload(NamedTuple):
        delta: OwnBlock     # the client's block and the shared block
        dc: Whole           # every coordinate

One round of a client, seen from here:

    upload, new = algorithm.client_rule(work, down, mine)      whole vectors
    terms = algorithm.terms(sent, down, task)                  on the coordinates that were uploaded, on both sides
    mine = algorithm.settle(new, terms)                        on the coordinates that were uploaded

and of the server: `server = algorithm.server_rule(server, total, round)`, where every field of `total` is the mean of
the terms over the clients that sent a coordinate, or their sum where the field is declared `Summed`.

Rules are pure. They write slices as `[..., s]` and never look at the number of dimensions, so that the same
rule works on one client's vectors and on a stack of clients' (one row each).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, get_type_hints

from pydantic import Field
from torch import Tensor

from raybcgd.section import Section


class Travel(Enum):
    """How much of the flat vector a declared field carries."""

    WHOLE = "whole"
    OWN = "own"
    SHARED = "shared"
    SCALAR = "scalar"


class Reduction(Enum):
    """How the server combines a field over the clients that sent it."""

    MEAN = "mean"
    SUM = "sum"


Whole = Annotated[Tensor, Travel.WHOLE]
OwnBlock = Annotated[Tensor, Travel.OWN]
SharedBlock = Annotated[Tensor, Travel.SHARED]
Scalar = Annotated[Tensor, Travel.SCALAR]
Summed = Reduction.SUM

Direction = Callable[[Tensor, Tensor], Tensor]
"""(gradient, y) -> what is subtracted from y, times the step size."""


@dataclass(frozen=True)
class Declared:
    """One field of an `Upload`, `Terms` or `Down`, as its annotation declares it."""

    name: str
    travel: Travel
    reduction: Reduction


def declared(fields: type[Any]) -> tuple[Declared, ...]:
    """The declared fields of a named tuple class, in order."""
    found = []
    for name, hint in get_type_hints(fields, include_extras=True).items():
        marks = getattr(hint, "__metadata__", ())
        travel = next((mark for mark in marks if isinstance(mark, Travel)), None)
        if travel is None:
            raise TypeError(f"{fields.__qualname__}.{name} must be Whole, OwnBlock, SharedBlock or Scalar")
        reduction = next((mark for mark in marks if isinstance(mark, Reduction)), Reduction.MEAN)
        found.append(Declared(name, travel, reduction))
    return tuple(found)


class Task(Protocol):
    """What both the server and the client know about one client's work in a round."""

    @property
    def steps(self) -> int:
        """T, the local steps."""

    @property
    def lr(self) -> float:
        """eta of this round."""

    @property
    def shared(self) -> slice:
        """The shared block, among the uploaded coordinates."""

    def mean_gradient(self, delta: Tensor) -> Tensor:
        """(x - y_T)/(T eta), from delta = y_T - x: the mean direction along the local path. Zero on buffers."""


class Work(Protocol):
    """A client's local training, as the rules see it: gradients and steps on flat vectors."""

    lr: float
    """eta of this round."""
    phase: int
    """The block of data in time that is on (block-cyclic data); 0 where there are none."""

    @property
    def own(self) -> Tensor:
        """1 on the coordinates of the client's block and the shared block, 0 elsewhere."""

    @property
    def shared(self) -> Tensor:
        """1 on the coordinates of the shared block, 0 elsewhere."""

    def sgd(
        self,
        x: Tensor,
        direction: Direction | None = None,
        *,
        momentum: float | Tensor = 0.0,
        variance_reduced: bool = False,
    ) -> Tensor:
        """y_T after the round's local steps y <- y - eta direction(g, y), from y = x.

        With `variance_reduced`, g is g(y; batch) - g(x; batch) + the full gradient at x.
        """

    def mean_gradient(self, delta: Tensor) -> Tensor:
        """(x - y_T)/(T eta), from delta = y_T - x: the mean direction along the local path. Zero on buffers."""

    def full_gradient(self, x: Tensor) -> Tensor:
        """The gradient of the client's whole loss at x. Zero on buffers."""

    def loss(self, x: Tensor) -> Tensor:
        """The client's mean loss at x, without a step."""


@dataclass(frozen=True)
class Round:
    """What the server rule may know about the round."""

    index: int
    clients: int
    """M, the clients in all."""
    lr: float
    """eta of this round."""
    steps: float
    """T, the mean number of local steps over the round's cohort."""
    phase: int = 0
    """The block of data in time that is on (block-cyclic data); 0 where there are none."""


class Nothing(NamedTuple):
    """The state of a client that keeps none."""


class Algorithm(Section):
    """The base of every method. Subclass it, declare the tuples, write the rules."""

    name: ClassVar[str]
    """What `[algorithm] name` says in a config."""

    lr: Annotated[float, Field(gt=0)] = 0.1
    """eta, the local step size."""
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 0.998
    """The step size of round r is lr * lr_decay**r."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.001
    """L2 regularisation, part of the local gradient."""

    Upload: ClassVar[type[Any]]
    """What a client sends."""
    Terms: ClassVar[type[Any] | None] = None
    """What the server adds up, where that is not the upload itself."""
    Down: ClassVar[type[Any]]
    """What the server broadcasts."""
    fixed_batches: ClassVar[bool] = False
    """Whether a batch keeps its members through the epochs of a round."""
    pooled: ClassVar[bool] = False
    """Whether one client holds the data of all, and takes part alone."""

    def server_init(self, x: Tensor, phases: int = 1) -> Any:
        """The server's state before round 0; `phases` is the number of data phases, 1 where there are none."""
        raise NotImplementedError

    def client_init(self, x: Tensor) -> Any:
        """A client's state before its first round; x gives the shape and type only."""
        return Nothing()

    def broadcast(self, server: Any, rnd: Round) -> Any:
        """What every sampled client gets."""
        raise NotImplementedError

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        """Local training: the upload, and the client's new state."""
        raise NotImplementedError

    def terms(self, sent: Any, down: Any, task: Task) -> Any:
        """What the server adds up for one client, from what was transmitted.

        Both sides call this on the uploaded coordinates alone, so it must act on each coordinate by itself.
        """
        return sent

    def settle(self, mine: Any, terms: Any) -> Any:
        """The client's state after its upload, on the uploaded coordinates alone."""
        return mine

    def server_rule(self, server: Any, total: Any, rnd: Round) -> Any:
        """The server's next state.

        The caller puts back coordinates that nobody uploaded, and sets buffers to their average x + total.delta.
        """
        raise NotImplementedError

    def models(self, server: Any) -> tuple[Tensor, ...]:
        """The vectors to judge: one, or one for every data phase."""
        return (server.x,)

    def lr_at(self, round_index: int) -> float:
        """eta of a round."""
        return self.lr * self.lr_decay**round_index

    @property
    def upload_type(self) -> type[Any]:
        """The class of what is sent, where hyper-parameters choose between several."""
        return self.Upload

    @property
    def terms_type(self) -> type[Any]:
        """The class of what the server adds up."""
        return self.Terms or self.upload_type

    @property
    def blockwise(self) -> bool:
        """Whether clients upload a block of their own."""
        return any(field.travel is Travel.OWN for field in declared(self.upload_type))
