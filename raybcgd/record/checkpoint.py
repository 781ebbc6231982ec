"""Checkpoints: everything that a run needs to go on with the same bits, as safetensors and JSON, whole or not at all.

checkpoints/round-000060/server.safetensors    the server's vectors
checkpoints/round-000060/ledger.safetensors    which version of every client's state is committed
checkpoints/round-000060/history.safetensors   what planning remembers, where it remembers anything
checkpoints/round-000060/rounds.jsonl          the log up to here
checkpoints/round-000060/manifest.json         position, identity of the run, checksums; written last
states/                                        the client states themselves: immutable files that ledgers refer to
"""

import contextlib
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pyarrow import fs
from pydantic import Field
from safetensors.numpy import load, save

from raybcgd.client.states import FRESH, StateFolder, open_address, write_file
from raybcgd.errors import ConfigError, RunError
from raybcgd.section import Section
from raybcgd.server.ledger import Ledger

log = logging.getLogger(__name__)


class CheckpointConfig(Section):
    """`[checkpoint]`: when and where a run is saved."""

    every: Annotated[int, Field(ge=0)] = 10
    """Save after every n-th round; 0 never saves."""
    keep: Annotated[int, Field(ge=1)] = 2
    """How many checkpoints are kept."""
    address: str | None = None
    """A folder, or an address such as s3://bucket/path, that every node can reach; the run's folder unless given."""

    def due(self, round_index: int, rounds: int) -> bool:
        """Whether a round is saved."""
        return self.every > 0 and ((round_index + 1) % self.every == 0 or round_index + 1 == rounds)


@dataclass(frozen=True)
class Position:
    """Where a run stands: `rounds` of them are done."""

    rounds: int
    server: Mapping[str, np.ndarray]
    ledger: Ledger
    log: bytes
    """`rounds.jsonl` up to here."""
    upload_d_total: float
    history: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What planning remembers."""


class Checkpoints:
    """The checkpoints of one run under an address."""

    def __init__(self, address: str, keep: int, identity: Mapping[str, Any]) -> None:
        self._filesystem, root = open_address(address)
        self._root = f"{root}/checkpoints"
        self._states = StateFolder(f"{address}/states")
        self._keep = keep
        self._identity = json.loads(json.dumps(identity))
        self._retained: dict[int, Ledger] = {}

    def refuse_others(self) -> None:
        """A new run must not start where another run's checkpoints are."""
        if self._present():
            raise ConfigError(
                f"{self._root} already holds checkpoints of a run; set checkpoint.address elsewhere, or resume that run"
            )

    def save(self, position: Position, superseded: list[tuple[int, int]]) -> None:
        """Write a checkpoint, then remove what the policy no longer keeps, `superseded` states among it."""
        folder = self._folder(position.rounds)
        self._filesystem.create_dir(folder, recursive=True)
        ledger = {"versions": position.ledger.versions, "checksums": position.ledger.checksums}
        files = {
            "server.safetensors": save(dict(position.server)),
            "ledger.safetensors": save(ledger),
            "rounds.jsonl": position.log,
        }
        if position.history:
            files["history.safetensors"] = save(dict(position.history))
        for name, data in files.items():
            write_file(self._filesystem, f"{folder}/{name}", data)
        manifest = {
            "rounds": position.rounds,
            "upload_d_total": position.upload_d_total,
            "identity": self._identity,
            "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        }
        write_file(self._filesystem, f"{folder}/manifest.json", _sealed(manifest))
        self._retained[position.rounds] = position.ledger
        self._prune(superseded)

    def _prune(self, superseded: list[tuple[int, int]]) -> None:
        for rounds in sorted(self._retained)[: -self._keep]:
            self._filesystem.delete_dir(self._folder(rounds))
            del self._retained[rounds]
        needed = [ledger.versions for ledger in self._retained.values()]
        dead = {(c, v) for c, v in superseded if all(versions[c] != v for versions in needed)}
        self._states.remove(dead)
        superseded[:] = [pair for pair in superseded if pair not in dead]

    def latest(self) -> Position | None:
        """The newest checkpoint that is whole; damaged ones are passed over with a warning."""
        found = None
        for rounds in sorted(self._present(), reverse=True):
            try:
                position = self._read(rounds)
            except _Damaged as error:
                log.warning("checkpoint of round %d is damaged (%s) and is passed over", rounds, error)
                self._filesystem.delete_dir(self._folder(rounds))
                continue
            self._retained[rounds] = position.ledger
            found = found or position
        self._states.keep_only({pair for ledger in self._retained.values() for pair in ledger.pairs()})
        return found

    def newest(self) -> Position | None:
        """Like `latest`, but for a look: nothing is removed and nobody is warned."""
        for rounds in sorted(self._present(), reverse=True):
            with contextlib.suppress(_Damaged):
                return self._read(rounds)
        return None

    def _present(self) -> list[int]:
        entries = self._filesystem.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        names = [entry.base_name for entry in entries if entry.type == fs.FileType.Directory]
        return [int(name.removeprefix("round-")) for name in names if name.startswith("round-")]

    def _read(self, rounds: int) -> Position:
        folder = self._folder(rounds)
        manifest = _unsealed(self._bytes(f"{folder}/manifest.json"))
        self._check_identity(manifest["identity"])
        files = {}
        for name, checksum in manifest["sha256"].items():
            files[name] = self._bytes(f"{folder}/{name}")
            if hashlib.sha256(files[name]).hexdigest() != checksum:
                raise _Damaged(f"{name} does not match its checksum")
        arrays = load(files["ledger.safetensors"])
        ledger = Ledger(arrays["versions"], arrays["checksums"])
        for client in np.flatnonzero(ledger.versions != FRESH.version):
            try:
                self._states.read(int(client), ledger[int(client)])
            except RunError as error:
                raise _Damaged(str(error)) from None
        return Position(
            rounds=manifest["rounds"],
            server=load(files["server.safetensors"]),
            ledger=ledger,
            log=files["rounds.jsonl"],
            upload_d_total=manifest["upload_d_total"],
            history=load(files["history.safetensors"]) if "history.safetensors" in files else {},
        )

    def _check_identity(self, saved: Mapping[str, Any]) -> None:
        differences = difference(saved, self._identity)
        if differences:
            raise ConfigError(
                f"the checkpoint under {self._root} is of another experiment: {'; '.join(differences[:5])}; "
                "restore these settings, or choose another --out"
            )

    def _bytes(self, path: str) -> bytes:
        try:
            with self._filesystem.open_input_file(path) as file:
                return bytes(file.read())
        except FileNotFoundError:
            raise _Damaged(f"{path.rpartition('/')[2]} is missing") from None

    def _folder(self, rounds: int) -> str:
        return f"{self._root}/round-{rounds:06d}"


class _Damaged(Exception):
    """A checkpoint that cannot be trusted."""


def _sealed(manifest: Mapping[str, Any]) -> bytes:
    body = json.dumps(manifest, indent=1, sort_keys=True)
    return f"{body}\n{hashlib.sha256(body.encode()).hexdigest()}\n".encode()


def _unsealed(data: bytes) -> dict[str, Any]:
    try:
        body, _, seal = data.decode().rstrip("\n").rpartition("\n")
        if hashlib.sha256(body.encode()).hexdigest() != seal:
            raise _Damaged("manifest.json does not match its checksum")
        return dict(json.loads(body))
    except ValueError as error:
        raise _Damaged(f"manifest.json: {error}") from None


def difference(saved: Mapping[str, Any], current: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The settings in which two nested tables differ, each as "key = saved there, current here"."""
    lines = []
    for key in sorted(saved.keys() | current.keys()):
        name, there, here = f"{prefix}{key}", saved.get(key), current.get(key)
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            lines += difference(there, here, f"{name}.")
        elif there != here:
            lines.append(f"{name} = {there!r} there, {here!r} here")
    return lines
