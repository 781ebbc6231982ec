"""The ledger: commits, snapshots, and states that compaction moved."""

import random

import numpy as np

from raybcgd.messages import FRESH, StateRef
from raybcgd.record.ledger import Ledger


def test_a_ledger_follows_commits_snapshots_and_moves() -> None:
    rng, ledger = random.Random(7), Ledger.fresh(30)
    expected: dict[int, StateRef] = {}
    for index in range(200):
        clients = rng.sample(range(30), 6)
        new = {client: StateRef(f"{index}-{k // 3}", k % 3, rng.randrange(2**32)) for k, client in enumerate(clients)}
        new[clients[0]] = FRESH  # it failed, and keeps its state
        ledger.commit(new)
        expected |= {client: ref for client, ref in new.items() if ref != FRESH}
        if rng.random() < 0.1:
            moved = np.array(sorted(client for client in expected if rng.random() < 0.5))
            old = [ledger[client] for client in moved.tolist()]
            late = {int(moved[0]): StateRef(f"{index}-late", 0, 1)} if len(moved) else {}
            ledger.commit(late)  # a commit during the compaction
            ledger.move(moved, old, f"{index}-merged")
            copies = {
                client: StateRef(f"{index}-merged", k, old[k].checksum) for k, client in enumerate(moved.tolist())
            }
            expected |= copies | late
        if rng.random() < 0.2:
            ledger.forget(set(ledger.names) - ledger.needed())
        assert {client: ledger[client] for client in ledger.clients.tolist()} == expected
        assert ledger.needed() == {ref.segment for ref in expected.values()}
        assert ledger.stored_rows >= len(expected)
        saved = ledger.snapshot()
        assert set(saved.names) == ledger.needed()
        assert [saved[client] for client in range(30)] == [ledger[client] for client in range(30)]


def test_a_snapshot_does_not_follow_later_commits() -> None:
    ledger = Ledger.fresh(3)
    ledger.commit({1: StateRef("a", 0, 5)})
    saved = ledger.snapshot()
    ledger.commit({1: StateRef("b", 1, 6), 2: StateRef("b", 0, 7)})
    assert [saved[client] for client in range(3)] == [FRESH, StateRef("a", 0, 5), FRESH]
    assert saved.names == ["a"]
    assert ledger.sizes == [1, 2]
