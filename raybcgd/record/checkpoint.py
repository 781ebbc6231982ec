"""Checkpoints: everything that a run needs to resume with the same bits, as safetensors and JSON.

checkpoints/round-000060/server.safetensors    the server's state
checkpoints/round-000060/ledger.safetensors    the committed version of every client's state
checkpoints/round-000060/history.safetensors   what planning remembers, if anything
checkpoints/round-000060/rounds.jsonl          the log so far
checkpoints/round-000060/manifest.json         position, identity of the run, checksums; written last
states/                                        the client states: immutable files that ledgers refer to
"""

import contextlib
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pyarrow import fs
from safetensors.numpy import load, save

from raybcgd.errors import ConfigError, RunError
from raybcgd.messages import FRESH
from raybcgd.record.ledger import Ledger
from raybcgd.record.states import StateFolder
from raybcgd.storage import open_address, write_file

log = logging.getLogger(__name__)

VERSION = 2
"""The version of the checkpoint format."""


@dataclass(frozen=True)
class Position:
    """Where a run stands after some rounds."""

    rounds: int
    server: Mapping[str, np.ndarray]
    ledger: Ledger
    upload_d_total: float
    history: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What planning remembers."""
    log: bytes = b""
    """`rounds.jsonl` so far."""


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
        """Refuse to start a new run where another run's checkpoints are."""
        if self._present():
            raise ConfigError(
                f"{self._root} already holds checkpoints of a run; set another checkpoint.address, or resume that run"
            )

    def save(self, position: Position, superseded: list[tuple[int, int]]) -> None:
        """Write a checkpoint, then delete old checkpoints and the `superseded` states that only they needed."""
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
            "version": VERSION,
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
        """Return the newest undamaged checkpoint. Delete damaged ones with a warning."""
        found = None
        for rounds in sorted(self._present(), reverse=True):
            try:
                position = self._read(rounds)
            except _Damaged as error:
                log.warning("skipping the checkpoint of round %d, which is damaged (%s)", rounds, error)
                self._filesystem.delete_dir(self._folder(rounds))
                continue
            self._retained[rounds] = position.ledger
            found = found or position
        self._states.keep_only({pair for ledger in self._retained.values() for pair in ledger.pairs()})
        return found

    def newest(self) -> Position | None:
        """Return the newest undamaged checkpoint without changing any file."""
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
        if manifest.get("version") != VERSION:
            raise ConfigError(
                f"{folder} was written by another version of raybcgd; resume it with that version, or start again "
                "with another --out"
            )
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
            upload_d_total=manifest["upload_d_total"],
            history=load(files["history.safetensors"]) if "history.safetensors" in files else {},
            log=files["rounds.jsonl"],
        )

    def _check_identity(self, saved: Mapping[str, Any]) -> None:
        differences = difference(saved, self._identity)
        if differences:
            raise ConfigError(
                f"the checkpoint under {self._root} belongs to another experiment: {'; '.join(differences[:5])}; "
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
    """A checkpoint that cannot be used."""


def _sealed(manifest: Mapping[str, Any]) -> bytes:
    """Return a manifest followed by its checksum."""
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
    """Return the settings in which two nested tables differ, each as "key = saved there, current here"."""
    lines = []
    for key in sorted(saved.keys() | current.keys()):
        name, there, here = f"{prefix}{key}", saved.get(key), current.get(key)
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            lines += difference(there, here, f"{name}.")
        elif there != here:
            lines.append(f"{name} = {there!r} there, {here!r} here")
    return lines
