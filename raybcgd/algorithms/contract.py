"""The declarations of a method, and the checks that run when its class is created.

api.py explains the declarations. This module reads them for the rest of the package: for state sizes, traffic,
metrics and the table of methods.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from inspect import signature
from typing import Annotated, Any, NamedTuple, get_type_hints

import torch
from torch import Tensor


class Kind(Enum):
    """What a declared field holds."""

    WHOLE = "Whole"
    OWN = "OwnBlock"
    SHARED = "SharedBlock"
    SCALAR = "Scalar"
    PER_PHASE = "PerPhase"
    PHASE_COUNTS = "PhaseCounts"
    COUNT = "Count"


class Mark(Enum):
    """What a declared field means."""

    SUMMED = "Summed"
    DISPLACEMENT = "Displacement"
    MOMENTUM = "Momentum"
    CONTROL_VARIATE = "ControlVariate"


Whole = Annotated[Tensor, Kind.WHOLE]
OwnBlock = Annotated[Tensor, Kind.OWN]
SharedBlock = Annotated[Tensor, Kind.SHARED]
Scalar = Annotated[Tensor, Kind.SCALAR]
PerPhase = Annotated[Tensor, Kind.PER_PHASE]
PhaseCounts = Annotated[Tensor, Kind.PHASE_COUNTS]
Count = Annotated[Tensor, Kind.COUNT]

Summed = Mark.SUMMED
Displacement = Mark.DISPLACEMENT
Momentum = Mark.MOMENTUM
ControlVariate = Mark.CONTROL_VARIATE


@dataclass(frozen=True)
class Field:
    """One declared field."""

    name: str
    kind: Kind
    marks: frozenset[Mark]

    @property
    def summed(self) -> bool:
        """Whether the server adds the clients' values instead of averaging them."""
        return Mark.SUMMED in self.marks

    @cached_property
    def per_coordinate(self) -> bool:
        """Whether the last dimension runs over the model's coordinates, so that `[..., block]` selects a block."""
        return self.kind not in (Kind.SCALAR, Kind.PHASE_COUNTS, Kind.COUNT)

    def shape(self, size: int, phases: int) -> tuple[int, ...]:
        """Return the shape in a state, for a model of `size` coordinates and `phases` data phases."""
        shapes = {Kind.WHOLE: (size,), Kind.PER_PHASE: (phases, size), Kind.PHASE_COUNTS: (phases,)}
        return shapes.get(self.kind, (1,))

    def dtype(self, model: torch.dtype) -> torch.dtype:
        """Return the dtype in a state: int64 for counts, otherwise that of the model."""
        return torch.int64 if self.kind in (Kind.PHASE_COUNTS, Kind.COUNT) else model


_known: dict[type[Any], tuple[Field, ...]] = {}


def declared(fields: type[Any]) -> tuple[Field, ...]:
    """Return the declared fields of a NamedTuple class, in order."""
    if fields not in _known:
        _known[fields] = _read(fields.__qualname__, fields, tuple(Kind))
    return _known[fields]


def _read(path: str, fields: type[Any], kinds: Iterable[Kind]) -> tuple[Field, ...]:
    try:
        hints = get_type_hints(fields, include_extras=True)
    except NameError as error:
        raise TypeError(f"{path} has an unknown annotation: {error}; import that name at module level") from None
    found = []
    for name in fields._fields:
        metadata = getattr(hints[name], "__metadata__", ())
        kind = next((item for item in metadata if isinstance(item, Kind)), None)
        if kind is None:
            raise TypeError(f"{path}.{name} must be annotated as {_either(kinds)}")
        found.append(Field(name, kind, frozenset(item for item in metadata if isinstance(item, Mark))))
    return tuple(found)


def marked(fields: type[Any], mark: Mark) -> tuple[str, ...]:
    """Return the names of the fields with a mark."""
    return tuple(field.name for field in declared(fields) if mark in field.marks)


def displacement(terms: type[Any]) -> str:
    """Return the name of the field that holds the client's displacement y_T - x."""
    found = marked(terms, Mark.DISPLACEMENT)
    if len(found) != 1:
        raise TypeError(next(_mark_mistakes(terms.__qualname__, declared(terms), required=True)))
    return found[0]


def zeros(state: type[Any], x: Tensor, phases: int) -> Any:
    """Return a state with every declared field at zero, for a model of x's size, dtype and device."""
    fields = declared(state)
    return state(*(x.new_zeros(field.shape(x.numel(), phases), dtype=field.dtype(x.dtype)) for field in fields))


def size_in_d(fields: type[Any], own: float = 1.0, shared: float = 0.0, phases: int = 1) -> float:
    """Return the size of the declared fields in units of d, excluding scalars and counts.

    `shared` is the fraction of d in the shared block, and `own` that in a client's block and the shared block.
    """
    sizes = {Kind.WHOLE: 1.0, Kind.OWN: own, Kind.SHARED: shared, Kind.PER_PHASE: float(phases)}
    return sum(sizes.get(field.kind, 0.0) for field in declared(fields))


class Summary(NamedTuple):
    """A method in words, from the first line of its docstring: "Title (Paper): idea."."""

    title: str
    paper: str
    idea: str


def summary(algorithm: type[Any]) -> Summary:
    """Return a method's title, paper and idea. A docstring in another form is returned as the idea."""
    line = (algorithm.__doc__ or "").strip().split("\n")[0]
    found = re.fullmatch(r"([^:(]+?)(?: \(([^)]*)\))?: (.+)", line)
    return Summary(*(part or "" for part in found.groups())) if found else Summary(algorithm.name, "", line)


def title(algorithm: type[Any]) -> str:
    """Return a method's name as its paper writes it."""
    return summary(algorithm).title


_STATE = (Kind.WHOLE, Kind.SCALAR, Kind.PER_PHASE, Kind.PHASE_COUNTS, Kind.COUNT)
_SENT = (Kind.WHOLE, Kind.OWN, Kind.SHARED, Kind.SCALAR)
_ROLES = {
    "Server": ("a server state can only have", _STATE),
    "Client": ("a client state can only have", _STATE),
    # Every client gets the same broadcast, so it cannot contain a client's own block.
    "Down": ("a broadcast can only have", (Kind.WHOLE, Kind.SHARED, Kind.SCALAR)),
    "Upload": ("an upload can only have", _SENT),
    "Terms": ("terms can only have", _SENT),
}
_MARKS = {
    Mark.SUMMED: (("Upload", "Terms"), _SENT),
    Mark.DISPLACEMENT: (("Upload", "Terms"), (Kind.WHOLE, Kind.OWN)),
    Mark.MOMENTUM: (("Server",), (Kind.WHOLE,)),
    Mark.CONTROL_VARIATE: (("Server",), (Kind.WHOLE,)),
}
_REQUIRED = {"Server": "x: Whole", "Down": "x: Whole", "Upload": "delta: Annotated[Whole, Displacement]"}
_MODEL = {"Server": "for the global model", "Down": "for the start of local training"}
_RULES = (
    *("client_rule", "terms", "settle", "server_rule", "candidates", "choose"),
    *("broadcast", "server_init", "client_init", "models", "lr_at"),
)


def check(algorithm: type[Any], base: type[Any]) -> None:
    """Raise a TypeError if the declarations of a subclass of `base` are wrong. The error says what to write instead."""
    mistake = next(_mistakes(algorithm, base), None)
    if mistake is not None:
        raise TypeError(mistake)


def _mistakes(algorithm: type[Any], base: type[Any]) -> Iterator[str]:
    """Yield the mistakes. Later checks assume that earlier ones passed, so only the first mistake is reliable."""
    owner = algorithm.__name__
    if not isinstance(getattr(algorithm, "name", None), str):
        yield f'{owner} has no name; write name: ClassVar[str] = "{owner.lower()}"'
    for role, example in _REQUIRED.items():
        if not hasattr(algorithm, role):
            yield f"{owner} has no {role}; write class {role}(NamedTuple): {example}"
    fields = {}
    for name, declaration in _tuples(algorithm).items():
        path, variant = f"{owner}.{name}", re.fullmatch(".*(Upload|Terms)", name)
        role = variant[1] if variant else name
        if role not in _ROLES:
            yield f"{path} has no role; end its name in Upload or Terms, or define it outside {owner}"
        elif not _is_named_tuple(declaration):
            yield f"{path} is not a NamedTuple; write class {name}(NamedTuple)"
        else:
            fields[name] = _read(path, declaration, _ROLES[role][1])
            yield from _field_mistakes(path, role, fields[name])
    yield from _upload_mistakes(owner, fields)
    if algorithm.broadcast is base.broadcast:
        yield from _broadcast_mistakes(owner, fields["Server"], fields["Down"])
    for rule in _RULES:
        arguments = ", ".join(signature(getattr(base, rule)).parameters).removeprefix("self, ")
        needed = rule.endswith("_rule") or (rule == "terms" and algorithm.Terms is not None)
        if needed and getattr(algorithm, rule) is getattr(base, rule):
            yield f"{owner} has no {rule}; write def {rule}(self, {arguments})"
        try:  # an instance without hyper-parameters binds self
            signature(getattr(object.__new__(algorithm), rule)).bind(*arguments.split(", "))
        except TypeError:
            yield f"{owner}.{rule} does not take ({arguments}); write def {rule}(self, {arguments})"


def _tuples(algorithm: type[Any]) -> dict[str, Any]:
    """Return the declarations of a method and its bases: the five roles, and every other NamedTuple class."""
    found: dict[str, Any] = {}
    for owner in reversed(algorithm.__mro__):
        found |= {name: value for name, value in vars(owner).items() if name in _ROLES or _is_named_tuple(value)}
    return {name: value for name, value in found.items() if not (name == "Terms" and value is None)}


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")


def _field_mistakes(path: str, role: str, fields: tuple[Field, ...]) -> Iterator[str]:
    can_have, allowed = _ROLES[role]
    for field in fields:
        kind = field.kind
        if kind not in allowed:
            yield f"{path}.{field.name} is {kind.value}; {can_have} {_either(allowed)}"
        for mark in field.marks:
            roles, kinds = _MARKS[mark]
            if role not in roles or kind not in kinds:
                where = f"a {_either(kinds)} field of {' or '.join(roles)}"
                yield f"{path}.{field.name} is {kind.value} and marked {mark.value}; only {where} can have that mark"
        if field.marks >= {Mark.DISPLACEMENT, Mark.SUMMED}:
            yield f"{path}.{field.name} is the Displacement, which is averaged; declare its sum as a second field"
    if role in _MODEL:
        x = next((field for field in fields if field.name == "x"), None)
        if x is None or x.kind is not Kind.WHOLE:
            found = f"{path} has no x" if x is None else f"{path}.x is {x.kind.value}"
            yield f"{found}; write x: Whole {_MODEL[role]}"


def _upload_mistakes(owner: str, fields: dict[str, tuple[Field, ...]]) -> Iterator[str]:
    """Check the marks of all tuples, and all uploads and terms that the hyper-parameters can select."""
    uploads = {name: found for name, found in fields.items() if name.endswith("Upload")}
    terms = {name: found for name, found in fields.items() if name.endswith("Terms")}
    for name, found in fields.items():
        yield from _mark_mistakes(f"{owner}.{name}", found, required=name in (terms or uploads))
    if any(field.kind is Kind.WHOLE for found in uploads.values() for field in found):
        return
    for name, found in terms.items():
        for field in found:
            if field.kind is Kind.WHOLE:
                yield f"{owner}.{name}.{field.name} is Whole, but no field of {owner}.Upload is; declare it OwnBlock"


def _mark_mistakes(path: str, fields: tuple[Field, ...], required: bool) -> Iterator[str]:
    """Check that no mark but `Summed` is repeated and, if `required`, that there is a displacement."""
    found = {mark: [field.name for field in fields if mark in field.marks] for mark in Mark}
    for mark, names in found.items():
        if len(names) > 1 and mark is not Mark.SUMMED:
            yield f"{path} marks {' and '.join(names)} as {mark.value}; mark one field"
    if required and not found[Mark.DISPLACEMENT]:
        vector = next((field for field in fields if field.kind in (Kind.WHOLE, Kind.OWN)), None)
        name, kind = (vector.name, vector.kind) if vector else ("delta", Kind.WHOLE)
        yield f"{path} has no Displacement; write {name}: Annotated[{kind.value}, Displacement]"


def _broadcast_mistakes(owner: str, server: tuple[Field, ...], down: tuple[Field, ...]) -> Iterator[str]:
    """Check that the default broadcast can fill Down from Server."""
    kept = {field.name: field.kind for field in server}
    for field in down:
        path, kind = f"{owner}.Down.{field.name}", kept.get(field.name)
        if kind is None:
            yield f"{path} is not a field of {owner}.Server; add it there, or override broadcast"
        elif (kind, field.kind) not in ((field.kind, kind), (Kind.WHOLE, Kind.SHARED)):
            yield (
                f"{path} is {field.kind.value} but {owner}.Server.{field.name} is {kind.value}; "
                "declare both the same, or override broadcast"
            )


def _either(kinds: Iterable[Kind]) -> str:
    *names, last = (kind.value for kind in kinds)
    return f"{', '.join(names)} or {last}" if names else last


def divergence_fix(algorithm: Any, rule: str) -> str:
    """Return the advice about non-finite values: lower the step size. If the rule is custom, check it first."""
    own = not getattr(type(algorithm), rule).__module__.startswith("raybcgd.")
    return f"check {rule} of {type(algorithm).__name__}, or lower algorithm.lr" if own else "lower algorithm.lr"
