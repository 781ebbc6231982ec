"""A client host: holds the data and the states of the clients homed on it, trains them, and judges models."""

import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybcgd.algorithms.api import Task
from raybcgd.algorithms.contract import Kind
from raybcgd.client.batches import schedule
from raybcgd.client.gradients import ClientStack, Gradients, OneClient, Shard
from raybcgd.client.state_cache import StateCache
from raybcgd.client.training import LocalWork
from raybcgd.data.augment import apply, draw
from raybcgd.data.normalise import normalise
from raybcgd.messages import FRESH, ClientTask, HostLoad, Outcome, Piece, RoundOrders, Score, StateRef
from raybcgd.model.flat import FlatModel
from raybcgd.problem import Data, Problem
from raybcgd.randomness import seed_of, stream
from raybcgd.record.states import State, StateFolder
from raybcgd.wire.upload import put, take

_UNUSED = stream(0)
"""For codecs that draw nothing: making a generator for every upload would take longer than encoding a small one."""


class _Trained(NamedTuple):
    """What came of local training; in a stack, `upload` and `new` have a row a client."""

    upload: Any
    new: Any
    states: list[State]
    """Before the round."""
    steps: list[int]
    losses: list[float]


class ClientHost:
    """Trains clients and evaluates models on one device. Knows nothing of where it runs."""

    def __init__(self, problem: Problem, data: Data, state_address: str, device: torch.device) -> None:
        config = problem.config
        self._problem, self._data, self._device = problem, data, device
        self._algorithm = problem.algorithm
        self._flat = FlatModel(problem.module(), problem.layout, problem.dtype, device)
        self._train_inputs = torch.from_numpy(data.dataset.train.inputs)
        self._train_targets = torch.from_numpy(data.dataset.train.targets)
        self._zero = torch.zeros(problem.layout.size, dtype=problem.dtype)
        self._states: StateCache | None = None
        if problem.keeps_state:
            budget = int(config.hosts.state_memory_mb * 2**20)
            self._states = StateCache(StateFolder(state_address), budget)
        self._edges: tuple[int, ...] | None = None
        self._wire = problem.wire
        self._masks: dict[int | str | None, Tensor] = {}

    def train(self, tasks: Sequence[ClientTask], down: Mapping[str, np.ndarray], orders: RoundOrders) -> list[Outcome]:
        """Do the tasks, in stacks where the model allows it. A client that fails does not take others with it."""
        broadcast = self._begin(down, orders)
        stacks = -(-len(tasks) // max(self._problem.stack, 1))
        outcomes: list[Outcome] = []
        for k in range(stacks):
            stack = tasks[k * len(tasks) // stacks : (k + 1) * len(tasks) // stacks]
            outcomes += self._attempt(stack, broadcast, orders)
        load = self._load()
        return [outcome._replace(load=load) for outcome in outcomes]

    def _load(self) -> HostLoad:
        on_device = torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else None
        return HostLoad(0 if self._states is None else self._states.bytes, on_device)

    def local_models(self, tasks: Sequence[ClientTask], down: Mapping[str, np.ndarray], orders: RoundOrders) -> list[Tensor]:
        """The whole models at which clients arrive in a round, for analysis: nothing is sent, and no state changes."""
        broadcast, stacked = self._begin(down, orders), bool(self._problem.stack)
        return [
            (broadcast.x + (delta[0] if stacked else delta)).cpu().clone()
            for delta in (self._follow_rule([task], broadcast, orders).upload.delta for task in tasks)
        ]

    def _begin(self, down: Mapping[str, np.ndarray], orders: RoundOrders) -> Any:
        """Be ready for a round; its broadcast on the device."""
        self._flat.module.train()
        if orders.edges != self._edges:
            self._edges, self._wire, self._masks = orders.edges, self._problem.wire_at(orders.edges), {}
        return self._algorithm.Down(**{k: torch.from_numpy(v).to(self._device) for k, v in down.items()})

    def _attempt(self, tasks: Sequence[ClientTask], down: Any, orders: RoundOrders) -> list[Outcome]:
        started = time.perf_counter()
        try:
            return self._together(tasks, down, orders, started)
        except Exception as error:
            if len(tasks) > 1:
                return [self._attempt([task], down, orders)[0] for task in tasks]
            cause = f"{type(error).__name__}: {error}".strip().split("\n")[0]
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{cause} ({where.filename.rpartition('/')[2]}:{where.lineno})"
            return [Outcome(tasks[0].client, None, FRESH, time.perf_counter() - started, float("nan"), text)]

    def _together(self, tasks: Sequence[ClientTask], down: Any, orders: RoundOrders, started: float) -> list[Outcome]:
        """One client, or a stack of clients, from their states to their uploads."""
        stacked, lr = bool(self._problem.stack), orders.lr
        upload, new, states, steps, losses = self._follow_rule(tasks, down, orders)
        outcomes = []
        for row, task in enumerate(tasks):
            one, mine = (_row(upload, row), _row(new, row)) if stacked else (upload, new)
            payload, state = self._send(task, one, mine, states[row], down, steps[row], lr, orders)
            outcomes.append(Outcome(task.client, payload, state, 0.0, losses[row]))
        elapsed = time.perf_counter() - started
        shares = [elapsed * taken / sum(steps) for taken in steps]
        return [outcome._replace(seconds=share) for outcome, share in zip(outcomes, shares, strict=True)]

    def _follow_rule(self, tasks: Sequence[ClientTask], down: Any, orders: RoundOrders) -> "_Trained":
        """Local training, of one client or a stack of clients, by the algorithm's client rule."""
        problem, stacked = self._problem, bool(self._problem.stack)
        shards = [self._shard(task.client, orders) for task in tasks]
        steps = [len(shard.schedule.order) for shard in shards]
        states = [self._state(task) for task in tasks]
        gradients: Gradients
        if stacked:
            rows = problem.config.local.batch_size
            gradients = ClientStack(
                self._flat, problem.loss, shards, problem.largest_client if rows == "full" else rows
            )
        else:
            torch.manual_seed(seed_of(problem.config.seed, "torch", tasks[0].client, orders.round_index))
            gradients = OneClient(self._flat, problem.loss, shards[0])
        work = LocalWork(
            gradients,
            steps=torch.tensor(steps, dtype=torch.float64)[:, None] if stacked else steps[0],
            lr=orders.lr,
            weight_decay=self._algorithm.weight_decay,
            own=lambda: self._own([task.block for task in tasks], stacked),
            shared=lambda: self._mask("shared"),
            trained=self._flat.trained,
            phase=orders.data_phase,
            anchor_bytes=int(problem.config.local.anchor_memory_mb * 2**20),
        )
        upload, new = self._algorithm.client_rule(work, down, self._gather(states, stacked))
        return _Trained(upload, new, states, steps, work.training_loss().reshape(-1).tolist())

    def _shard(self, client: int, orders: RoundOrders) -> Shard:
        problem, dataset = self._problem, self._data.dataset
        rows = torch.from_numpy(self._data.partitions[orders.data_phase].client(client))
        inputs = self._train_inputs.index_select(0, rows).to(self._device)
        targets = self._train_targets.index_select(0, rows).to(self._device)
        rng = stream(problem.config.seed, "batches", client, orders.round_index)
        plan = schedule(len(rows), problem.config.local, self._algorithm.fixed_batches, rng)
        augment = problem.config.data.augment
        if not augment:
            return Shard(normalise(inputs, dataset, problem.dtype), targets, plan, len(rows))
        # Fixed batches are one pass: what g(x) sees of a sample, g(y) sees too, in every epoch.
        passes = len(plan.members) // plan.per_epoch
        rng = stream(problem.config.seed, "augment", client, orders.round_index)
        draws = [draw(rng, len(rows), augment) for _ in range(passes)]

        def seen_in(epoch: int) -> Tensor:
            return normalise(apply(inputs, draws[epoch]), dataset, problem.dtype)

        return Shard(seen_in(0), targets, plan, len(rows), seen_in if passes > 1 else None)

    def _state(self, task: ClientTask) -> State:
        """The client's committed vectors, as the algorithm and the codec left them."""
        if self._states is None:
            return {}
        if task.state == FRESH:
            fresh = self._algorithm.client_init(self._zero)._asdict()
            return {**{f"algorithm.{k}": v.numpy() for k, v in fresh.items()}, **self._wire.initial_residuals()}
        return self._states.get(task.client, task.state)

    def _gather(self, states: Sequence[State], stacked: bool) -> Any:
        """The algorithm's client state on the device: vectors, or in a stack a row a client."""
        kind = type(self._algorithm.client_init(self._zero[:1]))
        vectors = {}
        for name in kind._fields:
            rows = [state[f"algorithm.{name}"] for state in states]
            vectors[name] = torch.from_numpy(np.stack(rows) if stacked else np.require(rows[0], requirements="W")).to(
                self._device
            )
        return kind(**vectors)

    def _send(
        self, task: ClientTask, upload: Any, new: Any, state: State, down: Any, steps: int, lr: float, orders: RoundOrders
    ) -> tuple[np.ndarray, StateRef]:
        """Encode an upload, and settle the client's state with what the server will have understood."""
        wire = self._wire
        codec = self._problem.codec
        rng = stream(self._problem.config.seed, "codec", task.client, orders.round_index) if codec.draws else _UNUSED
        values = wire.add_residuals(wire.select(upload, task.block), state, task.block)
        payload = wire.encode(values, rng)
        if self._states is None:
            return payload, FRESH
        slices = wire.coordinates(task.block)
        trained = None if self._flat.trained is None else take(self._flat.trained, slices).cpu()
        here = type(down)(*(take(v, slices).cpu() for v in down))
        facts = Task(steps, lr, trained, wire.shared_span(task.block))
        sent = wire.decode(payload, task.block)
        terms = self._algorithm.terms(sent, here, facts)
        before = type(new)(*(take(v, slices).cpu() for v in new))
        after = self._algorithm.settle(before, terms)
        kept: State = wire.updated_residuals(values, sent, state, task.block)
        for name, vector, changed in zip(new._fields, new, after, strict=True):
            result = vector.cpu().clone()
            put(result, slices, changed)
            kept[f"algorithm.{name}"] = result.numpy()
        return payload, self._states.put(task.client, orders.round_index + 1, kept)

    def _own(self, blocks: Sequence[int | None], stacked: bool) -> Tensor:
        masks = [self._mask(block) for block in blocks]
        return torch.stack(masks) if stacked else masks[0]

    def _mask(self, block: int | str | None) -> Tensor:
        """1 on the coordinates of a block and the shared one (or of the shared one alone), 0 elsewhere."""
        if block not in self._masks:
            mask = torch.zeros_like(self._flat.vector)
            wire = self._wire
            slices = wire.slices(Kind.SHARED, None) if isinstance(block, str) else wire.slices(Kind.OWN, block)
            for s in slices:
                mask[s] = 1
            self._masks[block] = mask
        return self._masks[block]

    @torch.no_grad()
    def evaluate(self, piece: Piece, x: np.ndarray) -> Score:
        """How well a model does on a piece of the test data."""
        dataset = self._data.dataset
        self._flat.module.eval()
        self._flat.vector.copy_(torch.from_numpy(x))
        rows = self._data.test_rows[piece.model][piece.start : piece.stop]
        inputs = normalise(torch.from_numpy(dataset.test.inputs[rows]).to(self._device), dataset, self._problem.dtype)
        targets = torch.from_numpy(dataset.test.targets[rows]).to(self._device)
        outputs = self._flat.module(inputs)
        losses = self._problem.loss(outputs, targets, reduction="none").double()
        guess = outputs.argmax(-1) if outputs.dim() > 1 and outputs.shape[-1] > 1 else (outputs.reshape(-1) > 0).long()
        return Score(int((guess == targets).sum()), float(losses.sum()), len(rows))


def _row(stack: Any, row: int) -> Any:
    """One client's part of a named tuple of stacks."""
    return type(stack)(*(value[row] for value in stack))
