"""Turn the results of a client rule into uploads, terms and new client states, for one client or a stack."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybcgd.aggregation.reducer import Reducer
from raybcgd.algorithms.contract import Field, declared
from raybcgd.client.device_states import Row, assembled
from raybcgd.errors import ContractError
from raybcgd.messages import ClientTask, RoundOrders, Traffic
from raybcgd.problem import Problem
from raybcgd.randomness import stream
from raybcgd.record.state_layout import State
from raybcgd.wire.upload import Values, Wire, length, restrict

_UNUSED = stream(0)
"""For codecs that draw no random numbers. Creating a generator takes longer than encoding a small upload."""


class Trained(NamedTuple):
    """Clients after local training, before their uploads. Without a stack, vectors have no client dimension."""

    tasks: Sequence[ClientTask]
    upload: Any
    mine: Any
    """The client states that the client rule received."""
    new: Any
    """The client states that it returned."""
    rows: np.ndarray
    """The states as bytes, one row per client. The new states overwrite them."""
    states: State
    """Views of the arrays in `rows`."""
    steps: list[int]
    losses: Tensor
    """The training loss of each client, on the device."""
    stacked: bool
    on_device: dict[int, Row] | None = None
    """Where `Uploads.send` puts the new states on the device, by position. None: they do not stay there."""


class Sent(NamedTuple):
    """The uploads of some clients with the same block."""

    block: int | None
    positions: list[int]
    """Their positions in the stack."""
    payloads: list[np.ndarray | None]
    traffic: list[Traffic | None]
    terms: Any
    """None if nothing on the host needs them."""


class Uploads:
    """Selects and encodes the uploads of a round, and settles client states with the values that the server decodes."""

    def __init__(self, problem: Problem, wire: Wire, reducer: Reducer, orders: RoundOrders) -> None:
        self._problem, self._wire, self._reducer, self._orders = problem, wire, reducer, orders
        self._algorithm = problem.algorithm

    def checked(self, returned: Any, stack: int | None) -> tuple[Any, Any]:
        """Return the upload and the new state that a client rule returned, or raise an error if they are wrong.

        `stack` is the number of stacked clients. None: one client, without a client dimension.
        """
        kind, state = self._algorithm.upload_type, self._algorithm.Client
        rule, pair = f"client_rule of {type(self._algorithm).__name__}", type(returned) is tuple and len(returned) == 2
        upload, new = returned if pair else (None, None)
        if (
            not set(kind._fields) <= set(getattr(upload, "_fields", ()))
            or getattr(new, "_fields", new if isinstance(new, tuple) else None) != state._fields
        ):
            found = f"({', '.join(type(part).__name__ for part in returned)})" if pair else type(returned).__name__
            raise ContractError(f"{rule} returned {found}; return (self.{kind.__name__}(…), self.Client(…))")
        size, phases = self._wire.layout.size, self._problem.data_phases
        for field in declared(kind):
            shape = (size,) if field.per_coordinate else (1,)
            _check_size(rule, f"{kind.__name__}.{field.name}", getattr(upload, field.name), shape, stack)
        for field in declared(state):
            _check_size(rule, f"Client.{field.name}", getattr(new, field.name), field.shape(size, phases), stack)
        return upload, new

    def send(self, trained: Trained) -> list[Sent]:
        """Return the uploads, grouped by block, and overwrite the clients' states."""
        return [self._send_block(trained, block, positions) for block, positions in _by_block(trained.tasks)]

    def _send_block(self, trained: Trained, block: int | None, positions: list[int]) -> Sent:
        wire, chosen = self._wire, _chosen(positions, trained)
        count = len(positions)
        rows = type(trained.upload)(
            *(value.detach().reshape(len(trained.tasks), -1)[chosen] for value in trained.upload)
        )
        residuals = {name: array[chosen] for name, array in trained.states.items() if name.startswith("codec.")}
        values = wire.select(rows, block)
        if residuals:
            values = wire.add_residuals({name: value.cpu() for name, value in values.items()}, residuals, block)
        sent, payloads, traffic = self._encode(values, [trained.tasks[k].client for k in positions], block)
        for name, array in wire.updated_residuals(values, sent, residuals, block).items():
            trained.states[name][chosen] = array
        if not (self._orders.reduce or self._problem.keeps_state):
            return Sent(block, positions, payloads, traffic, None)
        device = trained.upload[0].device
        one = sent if trained.stacked else type(sent)(*(value[0] for value in sent))
        steps = torch.tensor([trained.steps[k] for k in positions], dtype=torch.float64, device=device)
        one = type(one)(*(value.to(device) for value in one))
        terms = self._reducer.terms(block, one, steps[:, None] if trained.stacked else trained.steps[0])
        if self._algorithm.Client._fields:
            self._settle(trained, block, chosen, count, terms)
        return Sent(block, positions, payloads, traffic, terms)

    def _encode(
        self, values: Values, clients: list[int], block: int | None
    ) -> tuple[Any, list[np.ndarray | None], list[Traffic | None]]:
        """Encode one upload per client. Return what the server decodes, the payloads to send, and their costs."""
        wire, codec, upload_type = self._wire, self._problem.codec, self._algorithm.upload_type
        nothing: list[None] = [None] * len(clients)
        if codec.lossless and self._orders.reduce:  # encoding and decoding here would give the same values
            return upload_type(**values), [*nothing], [*nothing]
        seed, index = self._problem.config.seed, self._orders.round_index
        on_cpu = {name: value.cpu() for name, value in values.items()}
        payloads = []
        for k, client in enumerate(clients):
            rng = stream(seed, "codec", client, index) if codec.draws else _UNUSED
            payloads.append(wire.encode({name: value[k] for name, value in on_cpu.items()}, rng))
        traffic = [wire.upload(block, payload) if wire.cost_depends_on_values else None for payload in payloads]
        if codec.lossless or not (self._orders.reduce or self._problem.keeps_state):
            sent = upload_type(**values)
        else:
            sent = upload_type(
                *map(torch.stack, zip(*(wire.decode(payload, block) for payload in payloads), strict=True))
            )
        return sent, [*nothing] if self._orders.reduce else [*payloads], traffic

    def _settle(self, trained: Trained, block: int | None, chosen: Any, count: int, terms: Any) -> None:
        """Write the clients' new states: the result of `settle` on the uploaded coordinates, `new` elsewhere."""
        slices, fields = self._wire.coordinates(block), declared(self._algorithm.Client)
        new = trained.new if not trained.stacked else type(trained.new)(*(value[chosen] for value in trained.new))
        settled = self._algorithm.settle(restrict(new, slices), terms)
        rule = f"settle of {type(self._algorithm).__name__}"
        if getattr(settled, "_fields", None) != self._algorithm.Client._fields:
            raise ContractError(f"{rule} returned {type(settled).__name__}; return self.Client(…)")
        if trained.on_device is not None:
            rows = assembled(fields, new, settled, slices, count, trained.stacked)
            positions = range(len(trained.tasks))[chosen] if isinstance(chosen, slice) else chosen
            trained.on_device.update(zip(positions, rows, strict=True))
        for field, name in zip(fields, self._algorithm.Client._fields, strict=True):
            target, changed = trained.states[f"algorithm.{name}"], getattr(settled, name)
            shape = (*target.shape[1:-1], length(slices)) if field.per_coordinate else target.shape[1:]
            _check_size(rule, f"Client.{name}", changed, shape, count if trained.stacked else None)
            if not field.per_coordinate:
                target[chosen] = self._without_coordinates(field, changed, count)
                continue
            if getattr(trained.new, name) is not getattr(trained.mine, name):  # otherwise it is already there
                target[chosen] = _array(getattr(new, name), (count, *target.shape[1:]))
            start = 0
            values = _array(changed, (count, *target.shape[1:-1], -1))
            for s in slices:
                target[chosen, ..., s] = values[..., start : start + s.stop - s.start]
                start += s.stop - s.start

    def _without_coordinates(self, field: Field, changed: Tensor, count: int) -> np.ndarray:
        """Convert a field without coordinates to its declared shape and dtype. Raise if a count is not an integer."""
        changed = changed.reshape(count, *field.shape(0, self._problem.data_phases))
        result = changed.to(field.dtype(self._wire.dtype))
        if not result.is_floating_point() and bool((result != changed).any()):
            found = f"Client.{field.name} of {type(self._algorithm).__name__} is {field.kind.value}"
            raise ContractError(f"{found}, but its value is {changed[0].tolist()}; return integers")
        return _array(result, tuple(result.shape))


def _check_size(rule: str, name: str, value: Any, shape: tuple[int, ...], stack: int | None) -> None:
    """Raise an error if a rule returned a field of the wrong size. `stack`: the number of stacked clients, if any.

    A field with one value per client may lack its last dimension.
    """
    each, count = math.prod(shape), 1 if stack is None else stack
    if isinstance(value, Tensor) and value.numel() == count * each and (each == 1 or value.shape[-1] == shape[-1]):
        return
    found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    wanted = shape if stack is None else (stack, *shape)
    raise ContractError(f"{rule} returned {name} as {found}; return a tensor of shape {wanted}")


def _by_block(tasks: Sequence[ClientTask]) -> Iterator[tuple[int | None, list[int]]]:
    """Group the positions of tasks by block."""
    groups: dict[int | None, list[int]] = {}
    for position, task in enumerate(tasks):
        groups.setdefault(task.block, []).append(position)
    yield from groups.items()


def _chosen(positions: list[int], trained: Trained) -> Any:
    """Return an index of the rows at `positions`: a slice if these are all rows, to avoid a copy."""
    return slice(None) if len(positions) == len(trained.tasks) else positions


def _array(values: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    return values.detach().cpu().reshape(shape).numpy()
