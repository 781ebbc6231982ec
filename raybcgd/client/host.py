"""A client host: holds the data and states of its clients, trains them, and evaluates models."""

import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybcgd.aggregation.exact import Levels
from raybcgd.aggregation.reducer import Diverged, Reducer
from raybcgd.algorithms.api import Task
from raybcgd.algorithms.contract import Kind, displacement
from raybcgd.client.gradients import ClientStack, Gradients, OneClient, StackGradient
from raybcgd.client.shards import Shards
from raybcgd.client.state_cache import StateCache
from raybcgd.client.training import LocalWork
from raybcgd.client.uploads import Sent, Trained, Uploads
from raybcgd.data.normalise import normalise
from raybcgd.errors import named_line
from raybcgd.messages import (
    FRESH,
    CallResult,
    ClientTask,
    HostLoad,
    Outcome,
    Partial,
    Piece,
    RoundOrders,
    Score,
    SumKey,
)
from raybcgd.problem import Data, Problem
from raybcgd.randomness import seed_of
from raybcgd.record.state_layout import State
from raybcgd.record.states import SegmentFolder
from raybcgd.wire.upload import Wire


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread in torch, as hosts on Ray do. The bits of a result depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Round(NamedTuple):
    """What all calls of a round have in common."""

    orders: RoundOrders
    down: Any
    """The broadcast, on the device."""
    wire: Wire
    reducer: Reducer
    uploads: Uploads


class ClientHost:
    """Trains clients and evaluates models on one device. Engines decide where it runs."""

    def __init__(
        self, problem: Problem, data: Data, state_address: str, device: torch.device, interruptible: bool = True
    ) -> None:
        """Prepare a host. If Ctrl-C does not reach the process, only client code can raise KeyboardInterrupt."""
        self._caught = (Exception, SystemExit, *(() if interruptible else (KeyboardInterrupt,)))
        self._problem, self._data, self._device = problem, data, device
        self._algorithm = problem.algorithm
        self._flat = problem.flat_model(device)
        self._stack_gradient = StackGradient(self._flat, problem.loss)
        self._shards = Shards(problem, data, device)
        self._states = None
        if problem.keeps_state:
            folder = SegmentFolder(state_address, problem.state_layout)
            budget = int(problem.config.hosts.state_memory_mb * 2**20)
            self._states, self._fresh = StateCache(folder, budget, problem.clients), problem.fresh_row()
        self._round: _Round | None = None
        self._masks: dict[tuple[Kind, int | None], Tensor] = {}

    def train(
        self,
        tasks: Sequence[ClientTask],
        down: Mapping[str, np.ndarray],
        orders: RoundOrders,
        hand_over: bool = False,
    ) -> CallResult:
        """Run the tasks, in stacks if `problem.stack` is set. A failing client does not affect the others.

        With `hand_over`, the result includes the partial sum, see `hand_over`.
        """
        rnd = self._begin(down, orders)
        stacks = -(-len(tasks) // max(self._problem.stack, 1))
        cuts = [k * len(tasks) // max(stacks, 1) for k in range(stacks + 1)]
        outcomes: list[Outcome] = []
        for start, stop in pairwise(cuts):
            outcomes += self._train_isolated(tasks[start:stop], rnd)
        if self._states is not None and not hand_over:
            self._states.end_call()
        on_device = torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else None
        load = HostLoad(0 if self._states is None else self._states.bytes, on_device)
        return CallResult(outcomes, load, self.hand_over() if hand_over else None)

    def hand_over(self) -> Partial | None:
        """Wait until all new states are stored. Return the sum of all uploads since the last call, if there are any."""
        clients, keys = self.begin_hand_over()
        return Partial(clients, {key: self.take_piece(key) for key in keys}) if clients else None

    def begin_hand_over(self) -> tuple[tuple[int, ...], tuple[SumKey, ...]]:
        """Wait until all new states are stored. Return the clients and the pieces of the partial sum, to take next."""
        if self._states is not None:
            self._states.flush()
        return ((), ()) if self._round is None else (self._round.reducer.take_clients(), self._round.reducer.keys)

    def take_piece(self, key: SumKey) -> Levels:
        """Return a piece of the partial sum, and free it."""
        assert self._round is not None
        return self._round.reducer.take(key)

    def discard_sums(self) -> None:
        """Forget what is left of the partial sum."""
        self._round = None

    def local_models(
        self, tasks: Sequence[ClientTask], down: Mapping[str, np.ndarray], orders: RoundOrders
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

    def _begin(self, down: Mapping[str, np.ndarray], orders: RoundOrders) -> _Round:
        """Prepare for a call. The first call of a round moves the broadcast to the device."""
        self._flat.module.train()
        if self._round is None or self._round.orders != orders:
            if self._round is None or self._round.orders.edges != orders.edges:
                self._masks = {}
            wire = self._problem.wire_at(orders.edges)
            vectors = {name: torch.from_numpy(array).to(self._device) for name, array in down.items()}
            broadcast = self._algorithm.Down(**vectors)
            reducer = Reducer(self._problem, wire, broadcast, orders, self._device)
            self._round = _Round(orders, broadcast, wire, reducer, Uploads(self._problem, wire, reducer, orders))
        return self._round

    def _train_isolated(self, tasks: Sequence[ClientTask], rnd: _Round) -> list[Outcome]:
        """Train a stack of clients. If that fails, train them one at a time to isolate the failing client."""
        started = time.perf_counter()
        try:
            return self._train_stack(tasks, rnd)
        except self._caught as error:
            if len(tasks) > 1:
                return [self._train_isolated([task], rnd)[0] for task in tasks]
            diverged, seconds = isinstance(error, Diverged), time.perf_counter() - started
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{named_line(error)} ({where.filename.rpartition('/')[2]}:{where.lineno})"
            text = str(error) if diverged else text
            return [Outcome(tasks[0].client, None, FRESH, seconds, float("nan"), text, diverged)]

    def _train_stack(self, tasks: Sequence[ClientTask], rnd: _Round) -> list[Outcome]:
        """Train clients and store their states. The time is divided among them in proportion to their steps."""
        started = time.perf_counter()
        trained = self._run_client_rule(tasks, rnd)
        sent = rnd.uploads.send(trained)
        refs = [FRESH] * len(tasks)
        if self._states is not None:
            refs = self._states.put(rnd.orders.round_index, [task.client for task in tasks], trained.rows)
        if rnd.orders.reduce:  # last, because nothing that was added can be taken back
            self._add(sent, tasks, rnd)
        per_step = (time.perf_counter() - started) / sum(trained.steps)
        found: dict[int, Outcome] = {}
        for group in sent:
            for k, payload, traffic in zip(group.positions, group.payloads, group.traffic, strict=True):
                seconds = trained.steps[k] * per_step
                found[k] = Outcome(tasks[k].client, payload, refs[k], seconds, trained.losses[k], traffic=traffic)
        return [found[k] for k in range(len(tasks))]

    def _add(self, sent: list[Sent], tasks: Sequence[ClientTask], rnd: _Round) -> None:
        """Add uploads to the partial sum: all of them, or none if one is not finite."""
        groups = [(group, [tasks[k] for k in group.positions]) for group in sent]
        for group, members in groups:
            rnd.reducer.check_finite(group.block, group.terms, [task.client for task in members])
        for group, members in groups:
            clients, weights = [task.client for task in members], [task.weight for task in members]
            rnd.reducer.add(group.block, group.terms, clients, weights)

    def _run_client_rule(self, tasks: Sequence[ClientTask], rnd: _Round) -> Trained:
        """Train one client, or a stack of clients, with the algorithm's client rule."""
        problem, orders, stacked = self._problem, rnd.orders, bool(self._problem.stack)
        shards = [self._shards.shard(task.client, orders) for task in tasks]
        steps = [len(shard.schedule.order) for shard in shards]
        gradients: Gradients
        if stacked:
            size = problem.config.local.batch_size
            batch_rows = problem.largest_client if size == "full" else min(size, problem.largest_client)
            gradients = ClientStack(self._flat, self._stack_gradient, shards, batch_rows)
        else:
            torch.manual_seed(seed_of(problem.config.seed, "torch", tasks[0].client, orders.round_index))
            gradients = OneClient(self._flat, problem.loss, shards[0])
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
        arrays = [states[f"algorithm.{name}"] for name in self._algorithm.Client._fields]
        mine = self._algorithm.Client(*(torch.from_numpy(a if stacked else a[0]).to(self._device) for a in arrays))
        upload, new = self._algorithm.client_rule(work, rnd.down, mine)
        losses = work.training_loss().reshape(-1).tolist()
        return Trained(tasks, upload, mine, new, rows, states, steps, losses, stacked)

    def _gather(self, tasks: Sequence[ClientTask]) -> tuple[np.ndarray, State]:
        """Return a copy of the clients' committed states, as rows and as the arrays in them."""
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
    def evaluate(self, pieces: Sequence[Piece], models: Sequence[np.ndarray]) -> list[Score]:
        """Evaluate models on pieces of the test data. Each model is moved to the device once."""
        dataset, loaded = self._data.dataset, None
        self._flat.module.eval()
        scores = []
        for piece in pieces:
            if loaded is not (x := models[piece.model]):
                loaded = x
                self._flat.vector.copy_(torch.from_numpy(x))
            rows = self._data.test_rows[piece.model][piece.start : piece.stop]
            raw = torch.from_numpy(dataset.test.inputs[rows]).to(self._device)
            targets = torch.from_numpy(dataset.test.targets[rows]).to(self._device)
            outputs = self._flat.module(normalise(raw, dataset, self._problem.dtype))
            losses = self._problem.loss(outputs, targets, reduction="none").double()
            single = outputs.dim() == 1 or outputs.shape[-1] == 1
            guess = (outputs.reshape(-1) > 0).long() if single else outputs.argmax(-1)
            scores.append(Score(int((guess == targets).sum()), float(losses.sum()), len(rows)))
        return scores
