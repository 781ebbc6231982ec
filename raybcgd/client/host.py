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

from raybcgd.algorithms.api import Task
from raybcgd.algorithms.contract import Kind, declared, displacement
from raybcgd.client.batches import schedule
from raybcgd.client.gradients import ClientStack, Gradients, OneClient, Shard
from raybcgd.client.state_cache import StateCache
from raybcgd.client.training import LocalWork
from raybcgd.data.augment import apply, draw
from raybcgd.data.normalise import normalise
from raybcgd.errors import RunError, named_line
from raybcgd.messages import FRESH, ClientTask, HostLoad, Outcome, Piece, RoundOrders, Score, StateRef
from raybcgd.problem import Data, Problem
from raybcgd.randomness import seed_of, stream
from raybcgd.record.states import State, StateFolder
from raybcgd.wire.upload import put, restrict, take

_UNUSED = stream(0)
"""For codecs that draw no random numbers. Creating a generator per upload takes longer than encoding a small upload."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread in torch, as hosts on Ray do. The bits of a result depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Trained(NamedTuple):
    """A client after local training, before its upload."""

    task: ClientTask
    upload: Any
    new: Any
    """The client state that the client rule returned."""
    before: State
    """The state before the round."""
    steps: int
    loss: float


class ClientHost:
    """Trains clients and evaluates models on one device. Engines decide where it runs."""

    def __init__(self, problem: Problem, data: Data, state_address: str, device: torch.device) -> None:
        self._problem, self._data, self._device = problem, data, device
        self._algorithm = problem.algorithm
        self._flat = problem.flat_model(device)
        self._zero = torch.zeros(problem.layout.size, dtype=problem.dtype)
        budget = int(problem.config.hosts.state_memory_mb * 2**20)
        self._states = StateCache(StateFolder(state_address), budget) if problem.keeps_state else None
        self._edges: tuple[int, ...] | None = None
        self._wire = problem.wire
        self._masks: dict[tuple[Kind, int | None], Tensor] = {}

    def train(self, tasks: Sequence[ClientTask], down: Mapping[str, np.ndarray], orders: RoundOrders) -> list[Outcome]:
        """Run the tasks, in stacks if `problem.stack` is set. A failing client does not affect the others."""
        broadcast = self._begin(down, orders)
        stacks = -(-len(tasks) // max(self._problem.stack, 1))
        cuts = [k * len(tasks) // stacks for k in range(stacks + 1)]
        outcomes: list[Outcome] = []
        for start, stop in pairwise(cuts):
            outcomes += self._train_isolated(tasks[start:stop], broadcast, orders)
        on_device = torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else None
        load = HostLoad(0 if self._states is None else self._states.bytes, on_device)
        return [outcome._replace(load=load) for outcome in outcomes]

    def local_models(
        self, tasks: Sequence[ClientTask], down: Mapping[str, np.ndarray], orders: RoundOrders
    ) -> list[Tensor]:
        """Return the clients' whole models after local training, for analysis. Nothing is sent or committed."""
        broadcast, displaced = self._begin(down, orders), displacement(self._algorithm.terms_type)
        models = []
        for task in tasks:
            (trained,) = self._run_client_rule([task], broadcast, orders)
            everything = self._algorithm.upload_type(**self._wire.select(trained.upload, None))
            terms = self._terms(everything, None, trained.steps, broadcast, orders)
            models.append(broadcast.x.cpu() + getattr(terms, displaced))
        return models

    def _begin(self, down: Mapping[str, np.ndarray], orders: RoundOrders) -> Any:
        """Prepare for a round. Return the broadcast on the device."""
        self._flat.module.train()
        if orders.edges != self._edges:
            self._edges, self._wire, self._masks = orders.edges, self._problem.wire_at(orders.edges), {}
        vectors = {name: torch.from_numpy(array).to(self._device) for name, array in down.items()}
        return self._algorithm.Down(**vectors)

    def _train_isolated(self, tasks: Sequence[ClientTask], down: Any, orders: RoundOrders) -> list[Outcome]:
        """Train a stack of clients. If that fails, train them one at a time to isolate the failing client."""
        started = time.perf_counter()
        try:
            return self._train_stack(tasks, down, orders)
        except Exception as error:
            if len(tasks) > 1:
                return [self._train_isolated([task], down, orders)[0] for task in tasks]
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{named_line(error)} ({where.filename.rpartition('/')[2]}:{where.lineno})"
            return [Outcome(tasks[0].client, None, FRESH, time.perf_counter() - started, float("nan"), text)]

    def _train_stack(self, tasks: Sequence[ClientTask], down: Any, orders: RoundOrders) -> list[Outcome]:
        """Train clients and write their states. The time is divided among them in proportion to their steps."""
        started = time.perf_counter()
        trained = self._run_client_rule(tasks, down, orders)
        sent = [self._upload_and_settle(one, down, orders) for one in trained]
        per_step = (time.perf_counter() - started) / sum(one.steps for one in trained)
        return [
            Outcome(one.task.client, payload, state, one.steps * per_step, one.loss)
            for one, (payload, state) in zip(trained, sent, strict=True)
        ]

    def _run_client_rule(self, tasks: Sequence[ClientTask], down: Any, orders: RoundOrders) -> list[_Trained]:
        """Train one client, or a stack of clients, with the algorithm's client rule."""
        problem, stacked = self._problem, bool(self._problem.stack)
        shards = [self._shard(task.client, orders) for task in tasks]
        steps = [len(shard.schedule.order) for shard in shards]
        states = [self._state(task) for task in tasks]
        gradients: Gradients
        if stacked:
            rows = problem.config.local.batch_size
            rows = problem.largest_client if rows == "full" else rows
            gradients = ClientStack(self._flat, problem.loss, shards, rows)
        else:
            torch.manual_seed(seed_of(problem.config.seed, "torch", tasks[0].client, orders.round_index))
            gradients = OneClient(self._flat, problem.loss, shards[0])
        column = torch.tensor(steps, dtype=torch.float64)[:, None] if stacked else steps[0]
        work = LocalWork(
            gradients,
            Task(column, orders.lr, self._flat.trained, self._wire.shared_span(None)),
            weight_decay=self._algorithm.weight_decay,
            own=lambda: self._own([task.block for task in tasks], stacked),
            shared=lambda: self._mask(Kind.SHARED),
            data_phase=orders.data_phase,
            anchor_bytes=int(problem.config.local.anchor_memory_mb * 2**20),
        )
        upload, new = self._algorithm.client_rule(work, down, self._gather(states, stacked))
        losses = work.training_loss().reshape(-1).tolist()
        rows_of = _rows if stacked else lambda whole, _: [whole]
        uploads, news = rows_of(upload, len(tasks)), rows_of(new, len(tasks))
        return [_Trained(*one) for one in zip(tasks, uploads, news, states, steps, losses, strict=True)]

    def _shard(self, client: int, orders: RoundOrders) -> Shard:
        problem, dataset = self._problem, self._data.dataset
        rows = torch.from_numpy(self._data.partitions[orders.data_phase].client(client))
        inputs = torch.from_numpy(dataset.train.inputs).index_select(0, rows).to(self._device)
        targets = torch.from_numpy(dataset.train.targets).index_select(0, rows).to(self._device)
        rng = stream(problem.config.seed, "batches", client, orders.round_index)
        plan = schedule(len(rows), problem.config.local, self._algorithm.fixed_batches, rng)
        augment = problem.config.data.augment
        if not augment:
            return Shard(normalise(inputs, dataset, problem.dtype), targets, plan)
        # Fixed batches are augmented only once: g(x) and g(y) must see the same augmented samples in every epoch.
        passes = len(plan.members) // plan.per_epoch
        rng = stream(problem.config.seed, "augment", client, orders.round_index)
        draws = [draw(rng, len(rows), augment) for _ in range(passes)]

        def augmented(epoch: int) -> Tensor:
            return normalise(apply(inputs, draws[epoch]), dataset, problem.dtype)

        return Shard(augmented(0), targets, plan, augmented if passes > 1 else None)

    def _state(self, task: ClientTask) -> State:
        """Return the client's committed arrays: the algorithm's state and the codec's residuals."""
        if self._states is None:
            return {}
        if task.state == FRESH:
            fresh = self._algorithm.client_init(self._zero, self._problem.data_phases)._asdict()
            state = {f"algorithm.{name}": values.numpy() for name, values in fresh.items()}
            return {**state, **self._wire.initial_residuals()}
        return self._states.get(task.client, task.state)

    def _gather(self, states: Sequence[State], stacked: bool) -> Any:
        """Return the algorithm's client state on the device. A stack has one row per client."""
        values = []
        for name in self._algorithm.Client._fields:
            rows = [state[f"algorithm.{name}"] for state in states]
            value = np.stack(rows) if stacked else np.require(rows[0], requirements="W")
            values.append(torch.from_numpy(value).to(self._device))
        return self._algorithm.Client(*values)

    def _upload_and_settle(self, trained: _Trained, down: Any, orders: RoundOrders) -> tuple[np.ndarray, StateRef]:
        """Encode an upload, settle the client's state with the values that the server will decode, and store it."""
        wire, client, block = self._wire, trained.task.client, trained.task.block
        draws = self._problem.codec.draws
        rng = stream(self._problem.config.seed, "codec", client, orders.round_index) if draws else _UNUSED
        values = wire.add_residuals(wire.select(trained.upload, block), trained.before, block)
        payload = wire.encode(values, rng)
        if self._states is None:
            return payload, FRESH
        sent = wire.decode(payload, block)
        terms = self._terms(sent, block, trained.steps, down, orders)
        slices = wire.coordinates(block)
        settled = self._algorithm.settle(restrict(trained.new, slices), terms)
        kept: State = wire.updated_residuals(values, sent, trained.before, block)
        for field, whole, changed in zip(declared(self._algorithm.Client), trained.new, settled, strict=True):
            if field.per_coordinate:
                result = whole.cpu().clone()
                put(result, slices, changed)
            else:  # a rule may return it without its last dimension or its integer type
                changed = changed.reshape(field.shape(0, self._problem.data_phases))
                result = changed.to(field.dtype(wire.dtype))
                if not result.is_floating_point() and (result != changed).any():
                    found = f"Client.{field.name} is {field.kind.value}, but its value is {changed.tolist()}"
                    raise RunError(f"{found}; return integers")
            kept[f"algorithm.{field.name}"] = result.numpy()
        return payload, self._states.put(client, orders.round_index + 1, kept)

    def _terms(self, sent: Any, block: int | None, steps: int, down: Any, orders: RoundOrders) -> Any:
        """Compute the terms of an upload exactly as the server does."""
        slices = self._wire.coordinates(block)
        trained = None if self._flat.trained is None else take(self._flat.trained, slices).cpu()
        task = Task(steps, orders.lr, trained, self._wire.shared_span(block))
        return self._algorithm.terms(sent, restrict(down, slices), task)

    def _own(self, blocks: Sequence[int | None], stacked: bool) -> Tensor:
        masks = [self._mask(Kind.OWN, block) for block in blocks]
        return torch.stack(masks) if stacked else masks[0]

    def _mask(self, kind: Kind, block: int | None = None) -> Tensor:
        """Return a mask: 1 on the coordinates of a field of this kind for a client with this block, 0 elsewhere."""
        if (kind, block) not in self._masks:
            mask = self._masks[kind, block] = torch.zeros_like(self._flat.vector)
            for s in self._wire.slices(kind, block):
                mask[s] = 1
        return self._masks[kind, block]

    @torch.no_grad()
    def evaluate(self, piece: Piece, x: np.ndarray) -> Score:
        """Evaluate a model on a piece of the test data, or of a client's training data."""
        dataset, client = self._data.dataset, piece.client
        split = dataset.test if client is None else dataset.train
        parts, tests = self._data.partitions, self._data.test_rows
        own = tests[piece.model] if client is None else parts[piece.data_phase].client(client)
        self._flat.module.eval()
        self._flat.vector.copy_(torch.from_numpy(x))
        rows = own[piece.start : piece.stop]
        inputs = normalise(torch.from_numpy(split.inputs[rows]).to(self._device), dataset, self._problem.dtype)
        targets = torch.from_numpy(split.targets[rows]).to(self._device)
        outputs = self._flat.module(inputs)
        losses = self._problem.loss(outputs, targets, reduction="none").double()
        guess = outputs.argmax(-1) if outputs.dim() > 1 and outputs.shape[-1] > 1 else (outputs.reshape(-1) > 0).long()
        return Score(int((guess == targets).sum()), float(losses.sum()), len(rows))


def _rows(stack: Any, count: int) -> list[Any]:
    """Split a stacked tuple into one tuple per client."""
    return [type(stack)(*(value[row] for value in stack)) for row in range(count)]
