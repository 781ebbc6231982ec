"""A client host: holds the data and states of its clients, trains them, and evaluates models."""

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from raybcgd.aggregation.exact import Levels
from raybcgd.aggregation.reducer import Diverged, Reducer
from raybcgd.algorithms.api import Task
from raybcgd.algorithms.contract import Kind, displacement
from raybcgd.client.device import is_fatal, is_out_of_memory, load_of
from raybcgd.client.device_states import DeviceStates, Row
from raybcgd.client.gradients import ClientStack, Gradients, OneClient, stack_gradient
from raybcgd.client.shards import Shards
from raybcgd.client.state_cache import StateCache
from raybcgd.client.training import LocalWork
from raybcgd.client.uploads import Sent, Trained, Uploads
from raybcgd.data.dataset import Split
from raybcgd.data.normalise import as_targets, normalise
from raybcgd.errors import ContractError, located_line, named_line
from raybcgd.messages import (
    FRESH,
    CallResult,
    ClientTask,
    HostLoad,
    HostLost,
    Outcome,
    Partial,
    Piece,
    RoundOrders,
    Score,
    SumKey,
)
from raybcgd.model.metrics import Metrics
from raybcgd.model.outputs import judge, logits_of
from raybcgd.problem import Data, Problem
from raybcgd.randomness import seed_of
from raybcgd.record.state_layout import State
from raybcgd.record.states import SegmentFolder
from raybcgd.wire.upload import Wire

Vector = np.ndarray | Tensor
"""A vector of the server: an array from the object store, or a tensor of this process."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread in torch and in NumPy's BLAS. The bits of a result depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1, "blas"):
            yield
    finally:
        torch.set_num_threads(threads)


def _read(vectors: Sequence[Tensor | None]) -> list[list[float] | None]:
    """Return the values of vectors on the same device, copied from it together."""
    present = [vector for vector in vectors if vector is not None]
    values = iter(present[0].tolist() if len(present) == 1 else torch.cat([v.double() for v in present]).tolist())
    return [None if vector is None else list(islice(values, len(vector))) for vector in vectors]


class _Round(NamedTuple):
    """What all calls of a round share."""

    orders: RoundOrders
    down: Any
    """The broadcast, on the device."""
    wire: Wire
    reducer: Reducer
    uploads: Uploads


class _DeviceLost(Exception):
    """The host cannot continue: its device is broken, or its sums are incomplete."""

    def __init__(self, lost: HostLost) -> None:
        self.lost = lost


class ClientHost:
    """Trains clients and evaluates models on one device. Engines decide where it runs."""

    def __init__(
        self, problem: Problem, data: Data, state_address: str, device: torch.device, interruptible: bool = True
    ) -> None:
        """Prepare a host. If Ctrl-C cannot reach it (not `interruptible`), a KeyboardInterrupt is a client's error."""
        self._caught = (Exception, SystemExit, *(() if interruptible else (KeyboardInterrupt,)))
        self._problem, self._data, self._device = problem, data, device
        self._algorithm = problem.algorithm
        self._flat = problem.flat_model(device)
        self._bf16 = problem.config.local.precision == "bf16"
        backend = problem.config.local.compile
        self._stack_gradient = stack_gradient(self._flat, problem.loss, self._bf16, backend)
        self._forward = None if backend is None else torch.compile(self._flat.module, backend=backend, dynamic=True)
        self._metrics = Metrics(problem.config.evaluation.metrics)
        self._shards = Shards(problem, data, device)
        self._states = None
        if problem.keeps_state:
            folder = SegmentFolder(state_address, problem.state_layout)
            budget = int(problem.config.hosts.state_memory_mb * 2**20)
            self._states, self._fresh = StateCache(folder, budget, problem.clients), problem.fresh_row()
        on_device = 0 if device.type == "cpu" else int(problem.config.hosts.device_state_memory_mb * 2**20)
        self._device_states = DeviceStates(on_device, problem.state_layout.row_bytes)
        self._round: _Round | None = None
        self._masks: dict[tuple[Kind, int | None], Tensor] = {}

    def train(
        self,
        tasks: Sequence[ClientTask],
        down: Mapping[str, Vector],
        orders: RoundOrders,
        hand_over: bool = False,
        alone: bool = False,
    ) -> CallResult:
        """Run the tasks, in stacks if `problem.stack` is set. A failing client does not affect the others.

        With `hand_over`, the result includes the partial sum; see `hand_over`. With `alone`, clients train one at a
        time, to find the one that breaks the device.
        """
        stacks = -(-len(tasks) // (1 if alone else max(self._problem.stack, 1)))
        cuts = [k * len(tasks) // max(stacks, 1) for k in range(stacks + 1)]
        outcomes: list[Outcome] = []
        try:
            rnd = self._begin(down, orders)
            for start, stop in pairwise(cuts):
                outcomes += self._train_isolated(tasks[start:stop], rnd)
            if self._states is not None and not hand_over:
                self._states.end_call()
            partial = self.hand_over() if hand_over else None
            load = load_of(self._device, 0 if self._states is None else self._states.bytes)
        except _DeviceLost as error:
            return CallResult([], HostLoad(), lost=error.lost)
        except torch.AcceleratorError as error:  # broken before this call, by an evaluation or another process
            return CallResult([], HostLoad(), lost=HostLost((), named_line(error)))
        return CallResult(outcomes, load, partial)

    def hand_over(self, on_device: bool = False) -> Partial | None:
        """Wait until all new states are stored. Return the sum of all uploads since the last call, if there are any.

        With `on_device`, the sums stay on the device, for a coordinator in the same process.
        """
        clients, keys = self.begin_hand_over()
        return Partial(clients, {key: self.take_piece(key, on_device) for key in keys}) if clients else None

    def begin_hand_over(self) -> tuple[tuple[int, ...], tuple[SumKey, ...]]:
        """Wait until all new states are stored. Return the clients of the partial sum, and the keys of its pieces."""
        if self._states is not None:
            self._states.flush()
        return ((), ()) if self._round is None else (self._round.reducer.take_clients(), self._round.reducer.keys)

    def take_piece(self, key: SumKey, on_device: bool = False) -> Levels:
        """Return a piece of the partial sum, and free it."""
        assert self._round is not None
        return self._round.reducer.take(key, on_device)

    def discard_sums(self) -> None:
        """Forget what is left of the partial sum."""
        self._round = None

    def local_models(
        self, tasks: Sequence[ClientTask], down: Mapping[str, Vector], orders: RoundOrders
    ) -> list[Tensor]:
        """Return the clients' whole models after local training, for analysis. Nothing is sent or committed."""
        rnd, displaced = self._begin(down, orders), displacement(self._algorithm.terms_type)
        models = []
        for task in tasks:
            trained = self._run_client_rule([task], rnd)
            rows = type(trained.upload)(*(value.detach().reshape(-1) for value in trained.upload))
            everything = self._algorithm.upload_type(**rnd.wire.select(rows, None))
            terms = rnd.reducer.terms(None, everything, trained.steps[0])
            models.append((rnd.down.x + getattr(terms, displaced)).cpu())
        return models

    def _begin(self, down: Mapping[str, Vector], orders: RoundOrders) -> _Round:
        """Prepare for a call. The first call of a round moves the broadcast to the device."""
        self._flat.module.train()
        if self._round is None or self._round.orders != orders:
            if self._round is None or self._round.orders.edges != orders.edges:
                self._masks = {}
            wire = self._problem.wire_at(orders.edges)
            vectors = {name: torch.as_tensor(vector).to(self._device) for name, vector in down.items()}
            broadcast = self._algorithm.Down(**vectors)
            reducer = Reducer(self._problem, wire, broadcast, orders, self._device)
            self._round = _Round(orders, broadcast, wire, reducer, Uploads(self._problem, wire, reducer, orders))
        return self._round

    def _train_isolated(self, tasks: Sequence[ClientTask], rnd: _Round) -> list[Outcome]:
        """Train a stack of clients. If that fails, train them one at a time to isolate the failing client.

        If memory runs out, first free the states on the device, then halve the stack.
        """
        started = time.perf_counter()
        try:
            return self._train_stack(tasks, rnd)
        except self._caught as error:
            text = located_line(error)
            if is_fatal(error) or (rnd.reducer.broken and not isinstance(error, Diverged)):
                raise _DeviceLost(HostLost(tuple(task.client for task in tasks), text)) from None
            diverged, full = isinstance(error, Diverged), is_out_of_memory(error)
            contract = isinstance(error, ContractError)
            text = str(error) if diverged or contract else text
        # Outside the except clause, the traceback no longer holds the tensors of the failed stack.
        if full and self._free_device():
            return self._train_isolated(tasks, rnd)
        if len(tasks) > 1 and not diverged:
            size = -(-len(tasks) // 2) if full else 1
            parts = [tasks[start : start + size] for start in range(0, len(tasks), size)]
            return [outcome for part in parts for outcome in self._train_isolated(part, rnd)]
        seconds = time.perf_counter() - started
        return [Outcome(task.client, None, FRESH, seconds, float("nan"), text, diverged, contract) for task in tasks]

    def _free_device(self) -> bool:
        """Free cached memory on the device. Return whether client states were freed."""
        held = self._device_states.clear()
        gc.collect()  # copied modules leave reference cycles, which can hold tensors
        torch.accelerator.empty_cache()
        return held

    def _train_stack(self, tasks: Sequence[ClientTask], rnd: _Round) -> list[Outcome]:
        """Train clients and store their states. The time is divided among them in proportion to their steps."""
        started = time.perf_counter()
        trained = self._run_client_rule(tasks, rnd)
        sent = rnd.uploads.send(trained)
        refs = [FRESH] * len(tasks)
        if self._states is not None:
            refs = self._states.put(rnd.orders.round_index, [task.client for task in tasks], trained.rows)
        if trained.on_device:
            self._device_states.put(tasks, refs, [trained.on_device[k] for k in range(len(tasks))])
        losses = self._add(sent, trained, rnd)  # last, because it cannot be undone
        per_step = (time.perf_counter() - started) / sum(trained.steps)
        found: dict[int, Outcome] = {}
        for group in sent:
            for k, payload, traffic in zip(group.positions, group.payloads, group.traffic, strict=True):
                seconds = trained.steps[k] * per_step
                found[k] = Outcome(tasks[k].client, payload, refs[k], seconds, losses[k], traffic=traffic)
        return [found[k] for k in range(len(tasks))]

    def _add(self, sent: list[Sent], trained: Trained, rnd: _Round) -> list[float]:
        """Add uploads to the partial sum. Return the training losses, copied from the device with the measurements."""
        tasks, reducer = trained.tasks, rnd.reducer
        groups = sent if rnd.orders.reduce else []
        measures = [reducer.measure(group.block, group.terms, len(group.positions)) for group in groups]
        losses, *numbers = _read([trained.losses, *measures])
        for group, found in zip(groups, numbers, strict=True):
            members = [tasks[k] for k in group.positions]
            clients, weights = [task.client for task in members], [task.weight for task in members]
            measured = reducer.measured(group.block, found, len(members))
            reducer.add(group.block, group.terms, clients, weights, measured)
        assert losses is not None
        return losses

    def _run_client_rule(self, tasks: Sequence[ClientTask], rnd: _Round) -> Trained:
        """Train one client, or a stack of clients, with the algorithm's client rule."""
        problem, orders, stacked = self._problem, rnd.orders, bool(self._problem.stack)
        shards = self._shards.shards([task.client for task in tasks], orders)
        steps = [len(shard.schedule.order) for shard in shards]
        gradients: Gradients
        if stacked:
            size = problem.config.local.batch_size
            batch_rows = problem.largest_client if size == "full" else min(size, problem.largest_client)
            gradients = ClientStack(self._flat, self._stack_gradient, shards, batch_rows)
        else:
            torch.manual_seed(seed_of(problem.config.seed, "torch", tasks[0].client, orders.round_index))
            gradients = OneClient(self._flat, problem.loss, shards[0], self._bf16, self._forward)
        column = torch.tensor(steps, dtype=torch.float64)[:, None] if stacked else steps[0]
        work = LocalWork(
            gradients,
            Task(column, orders.lr, self._flat.trained, rnd.wire.shared_span(None)),
            weight_decay=self._algorithm.weight_decay,
            own=lambda: self._own([task.block for task in tasks], stacked, rnd.wire),
            shared=lambda: self._mask(Kind.SHARED, None, rnd.wire),
            data_phase=orders.data_phase,
            anchor_bytes=int(problem.config.local.anchor_memory_mb * 2**20),
        )
        rows, states = self._gather(tasks)
        mine = self._algorithm.Client(*self._on_device(tasks, states, stacked))
        returned = self._algorithm.client_rule(work, rnd.down, mine)
        upload, new = rnd.uploads.checked(returned, len(tasks) if stacked else None)
        losses = work.training_loss().reshape(-1)
        on_device: dict[int, Row] | None = {} if self._device_states and self._algorithm.Client._fields else None
        return Trained(tasks, upload, mine, new, rows, states, steps, losses, stacked, on_device)

    def _on_device(self, tasks: Sequence[ClientTask], states: State, stacked: bool) -> list[Tensor]:
        """Return the fields of the clients' states, on the device."""
        if self._device_states and (held := self._device_states.gather(tasks, stacked)) is not None:
            return held
        arrays = [states[f"algorithm.{name}"] for name in self._algorithm.Client._fields]
        # Copy, because the new states overwrite the rows.
        return [torch.from_numpy(array if stacked else array[0]).to(self._device, copy=True) for array in arrays]

    def _gather(self, tasks: Sequence[ClientTask]) -> tuple[np.ndarray, State]:
        """Return a copy of the clients' committed states: the rows, and views of the arrays in them."""
        if self._states is None:
            return np.empty((0, 0), dtype=np.uint8), {}
        rows = self._states.gather([(task.client, task.state) for task in tasks], self._fresh)
        return rows, self._problem.state_layout.views(rows)

    def _own(self, blocks: Sequence[int | None], stacked: bool, wire: Wire) -> Tensor:
        masks = [self._mask(Kind.OWN, block, wire) for block in blocks]
        return torch.stack(masks) if stacked else masks[0]

    def _mask(self, kind: Kind, block: int | None, wire: Wire) -> Tensor:
        """Return a mask: 1 on the coordinates of a field of this kind for a client with this block, 0 elsewhere."""
        if (kind, block) not in self._masks:
            mask = self._masks[kind, block] = torch.zeros_like(self._flat.vector)
            for s in wire.slices(kind, block):
                mask[s] = 1
        return self._masks[kind, block]

    @torch.no_grad()
    def evaluate(self, pieces: Sequence[Piece], models: Sequence[Vector]) -> list[Score]:
        """Evaluate models on pieces of the test data or of clients' data. Load a model once for adjacent pieces."""
        dataset, loaded = self._data.dataset, None
        self._flat.module.eval()
        scores = []
        for piece in pieces:
            if loaded is not (x := models[piece.model]):
                loaded = x
                self._flat.vector.copy_(torch.as_tensor(x))
            split, rows = self._rows_of(piece)
            raw = torch.from_numpy(split.inputs[rows]).to(self._device)
            targets = as_targets(split.targets[rows], self._problem.dtype).to(self._device)
            outputs = logits_of(self._flat.module(normalise(raw, dataset, self._problem.dtype)))
            losses = self._problem.loss(outputs, targets, reduction="none").double()
            # Pieces of clients need only the accuracy or the loss.
            measured = () if piece.client is not None else self._metrics.sums(outputs, targets)
            correct, error = judge(outputs, targets)
            scores.append(Score(correct, float(losses.sum()), len(rows), measured, error))
        return scores

    def _rows_of(self, piece: Piece) -> tuple[Split, np.ndarray]:
        """Return the split and the rows of a piece."""
        data = self._data
        if piece.client is None:
            return data.dataset.test, data.test_rows[piece.model][piece.start : piece.stop]
        rows = data.partitions[piece.data_phase].client(piece.client)
        return data.dataset.train, rows[piece.start : piece.stop]
