"""Checkpoints: everything that a run needs to resume bit for bit, as safetensors and JSON.

checkpoints/round-000060/server.safetensors    the server's state
checkpoints/round-000060/ledger.safetensors    the committed state of every client: segment, row and checksum
checkpoints/round-000060/history.safetensors   measurements that planning uses, if any
checkpoints/round-000060/rounds.jsonl          the log so far
checkpoints/round-000060/manifest.json         position, identity of the run, segments, checksums; written last
states/                                        the client states: immutable segments that ledgers refer to
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pyarrow import fs
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from raybcgd.errors import ConfigError, RunError, first_line
from raybcgd.record.compaction import Compactor
from raybcgd.record.ledger import Ledger
from raybcgd.record.rounds import RoundRecord
from raybcgd.record.state_layout import StateLayout
from raybcgd.record.states import Footer, SegmentFolder, round_of
from raybcgd.section import Section
from raybcgd.storage import FORMAT_VERSION, open_address, write_file, writing

log = logging.getLogger(__name__)

_PRUNE_ROUNDS = 16
"""Unused states are deleted after every checkpoint, and at least once in this many rounds."""


@dataclass(frozen=True)
class Position:
    """The saved state of a run after some rounds."""

    rounds: int
    server: Mapping[str, np.ndarray]
    ledger: Ledger
    upload_d_total: float
    history: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Measurements that planning uses."""
    log: bytes = b""
    """`rounds.jsonl` so far."""


@dataclass(frozen=True)
class Expected:
    """What the arrays of a run's checkpoints look like."""

    server: Mapping[str, np.ndarray]
    history: Mapping[str, np.ndarray]
    clients: int

    def check(self, position: Position) -> None:
        """Raise an error if a checkpoint does not fit the run."""
        _check_arrays("server.safetensors", position.server, self.server)
        edges = {"edges": position.history["edges"]} if "edges" in position.history else {}  # may have any length
        history = self.history if self.history or not edges else {"divisions": np.zeros(1, np.int64)}
        _check_arrays("history.safetensors", position.history, {**history, **edges})
        size = self.server["x"].shape[-1]
        if edges and (np.any(np.diff(edges["edges"], prepend=0, append=size) < 0) or edges["edges"].dtype != np.int64):
            raise RunError("edges in history.safetensors do not divide the model into blocks")
        clients = len(position.ledger.segments)
        if clients != self.clients:
            raise RunError(f"ledger.safetensors has {clients} clients, but the run has {self.clients}")


def _check_arrays(file: str, found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    if found.keys() != expected.keys():
        raise RunError(f"{file} has the arrays {', '.join(sorted(found))} instead of {', '.join(sorted(expected))}")
    for name, array in expected.items():
        if (found[name].shape, found[name].dtype) != (array.shape, array.dtype):
            raise RunError(
                f"{name} in {file} is {found[name].dtype} of shape {found[name].shape} instead of {array.dtype} of "
                f"shape {array.shape}"
            )


class _Manifest(Section):
    """`manifest.json`."""

    version: int
    rounds: Annotated[int, Field(ge=1)]
    upload_d_total: Annotated[float, Field(ge=0)]
    identity: dict[str, Any]
    segments: list[Annotated[str, Field(pattern=r"^[0-9a-z.-]+$")]]
    sha256: dict[Annotated[str, Field(pattern=r"^((server|ledger|history)\.safetensors|rounds\.jsonl)$")], str]


class Checkpoints:
    """The checkpoints of one run under an address."""

    def __init__(
        self,
        address: str,
        keep: int,
        identity: Mapping[str, Any],
        layout: StateLayout,
        expected: Expected | None = None,
        elsewhere: str = "in another folder",
    ) -> None:
        """`elsewhere` is where errors advise to start a new run."""
        self._filesystem, root = open_address(address)
        self._root = f"{root}/checkpoints"
        self._states = SegmentFolder(f"{address}/states", layout)
        self._compactor = Compactor(self._states)
        self._keep = keep
        self._identity = json.loads(json.dumps(identity))
        self._expected = expected
        self._elsewhere = elsewhere
        self._retained: dict[int, set[str]] = {}
        self._prune_at = 0
        self._footers: dict[str, Footer] = {}

    def refuse_others(self) -> None:
        """Raise an error if another run has checkpoints here."""
        if self._saved_rounds():
            raise ConfigError(f"{self._root} already holds a run; resume it, or set another checkpoint.address")

    def save(self, position: Position) -> None:
        """Write a checkpoint, then delete old checkpoints."""
        folder = self._folder(position.rounds)
        with writing(folder):
            self._filesystem.create_dir(folder, recursive=True)
        saved = position.ledger
        ledger = {"segments": saved.segments, "rows": saved.rows, "checksums": saved.checksums}
        groups = {"server": position.server, "ledger": ledger, "history": position.history}
        files = {f"{name}.safetensors": save(dict(arrays)) for name, arrays in groups.items() if arrays}
        files["rounds.jsonl"] = position.log
        manifest = {
            "version": FORMAT_VERSION,
            "rounds": position.rounds,
            "upload_d_total": position.upload_d_total,
            "identity": self._identity,
            "segments": saved.names,
            "sha256": {name: _sha256(data) for name, data in files.items()},
        }
        body = json.dumps(manifest, indent=1, sort_keys=True)
        files["manifest.json"] = f"{body}\n{_sha256(body.encode())}\n".encode()
        for name, data in files.items():
            write_file(self._filesystem, f"{folder}/{name}", data)
        self._retained[position.rounds] = set(saved.names)
        for rounds in sorted(self._retained)[: -self._keep]:
            self._filesystem.delete_dir(self._folder(rounds))
            del self._retained[rounds]
        self._prune_at = 0

    def maintain(self, ledger: Ledger, rounds: int) -> None:
        """Delete unused segments, and compact the others if that is due.

        Call this between rounds, when the ledger has `rounds` committed rounds and all of its snapshots are saved.
        """
        if not ledger.names:
            return
        self._compactor.step(ledger, rounds)
        if rounds >= self._prune_at:
            self._prune_at = rounds + _PRUNE_ROUNDS
            try:
                self._prune(ledger, rounds)
            except OSError as error:
                log.warning("cannot delete old client states (%s); the run continues", first_line(error))

    def _prune(self, ledger: Ledger, rounds: int) -> None:
        """Delete the segments that neither the ledger, nor a checkpoint, nor compaction needs."""
        needed = ledger.needed().union(self._compactor.in_use, *self._retained.values())
        self._states.remove(name for name in self._states.names(parts=True) if _is_dead(name, needed, rounds))
        ledger.forget(set(ledger.names) - needed)

    def close(self) -> None:
        """Stop background work."""
        self._compactor.close()

    def latest(self) -> Position | None:
        """Return the newest undamaged checkpoint. Warn about damaged ones, which `clean` then deletes."""
        found = None
        for position in self._undamaged():
            self._retained[position.rounds] = set(position.ledger.names)
            found = found or position
        self._footers.clear()
        return found

    def clean(self) -> None:
        """Delete the checkpoints that `latest` found damaged, and unused states."""
        for rounds in set(self._saved_rounds()) - self._retained.keys():
            self._filesystem.delete_dir(self._folder(rounds))
        needed: set[str] = set().union(*self._retained.values())
        self._states.remove(name for name in self._states.names(parts=True) if name not in needed)

    def newest(self) -> Position | None:
        """Return the newest undamaged checkpoint, for callers that only read."""
        return next(self._undamaged(), None)

    def _undamaged(self) -> Iterator[Position]:
        """Yield the undamaged checkpoints, newest first. Warn about the others."""
        for rounds in sorted(self._saved_rounds(), reverse=True):
            try:
                yield self._read(rounds)
            except ConfigError:
                raise
            except (OSError, MemoryError) as error:  # not damage: the file may be readable later
                raise RunError(
                    f"cannot read the checkpoint at {self._folder(rounds)} ({first_line(error)}); check the storage "
                    "and the memory, then resume, or delete that folder to resume from the checkpoint before it"
                ) from None
            # A damaged file can raise any of these.
            except (RunError, SafetensorError, LookupError, ValueError, TypeError) as error:
                log.warning("skipping the damaged checkpoint of round %d (%s)", rounds, first_line(error))

    def _saved_rounds(self) -> list[int]:
        entries = self._filesystem.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        names = [entry.base_name for entry in entries if entry.type == fs.FileType.Directory]
        return [int(match[1]) for name in names if (match := re.fullmatch(r"round-(\d{6,})", name))]

    def _read(self, rounds: int) -> Position:
        folder = self._folder(rounds)
        body, _, checksum = self._bytes(f"{folder}/manifest.json").rstrip(b"\n").rpartition(b"\n")
        if _sha256(body).encode() != checksum:
            raise RunError("manifest.json does not match its checksum")
        content = json.loads(body)
        if not isinstance(content, dict):
            raise RunError("manifest.json is not a JSON object")
        if content.get("version") != FORMAT_VERSION:
            raise ConfigError(
                f"{folder} was written by another version of raybcgd; resume it with that version, or start a "
                f"new run {self._elsewhere}"
            )
        manifest = _manifest(content)
        if differences := difference(manifest.identity, self._identity):
            # Changed settings can change the data's hash. Their names say more than the hash.
            named = [line for line in differences if not line.startswith("data_sha256")]
            differences = named or ["the training data or its partition has changed"]
            raise ConfigError(
                f"the checkpoint under {self._root} belongs to another experiment: {'; '.join(differences[:5])}; "
                f"restore these settings, or start a new run {self._elsewhere}"
            )
        files = {name: self._bytes(f"{folder}/{name}") for name in manifest.sha256}
        for name, data in files.items():
            if _sha256(data) != manifest.sha256[name]:
                raise RunError(f"{name} does not match its checksum")
        if manifest.rounds != rounds or files["rounds.jsonl"].count(b"\n") != rounds:
            logged = files["rounds.jsonl"].count(b"\n")
            raise RunError(f"the manifest has {manifest.rounds} rounds, but the log has {logged}")
        position = Position(
            rounds=rounds,
            server=load(files["server.safetensors"]),
            ledger=self._ledger(load(files["ledger.safetensors"]), manifest.segments),
            upload_d_total=manifest.upload_d_total,
            history=load(files["history.safetensors"]) if "history.safetensors" in files else {},
            log=files["rounds.jsonl"],
        )
        _check_log(position)
        if self._expected is not None:
            self._expected.check(position)
        return position

    def _ledger(self, saved: Mapping[str, np.ndarray], names: list[str]) -> Ledger:
        """Return a saved ledger, and check that the segments hold its states. Rows are verified when they are used."""
        arrays = [saved["segments"], saved["rows"], saved["checksums"]]
        if [array.dtype for array in arrays] != [np.int32, np.int32, np.uint32] or len({a.shape for a in arrays}) > 1:
            raise RunError("ledger.safetensors has arrays of the wrong type or of different lengths")
        self._footers |= self._states.footers(name for name in names if name not in self._footers)
        footers = [self._footers[name] for name in names]
        sizes = [len(footer.clients) for footer in footers]
        ledger = Ledger(saved["segments"], saved["rows"], saved["checksums"], names, sizes)
        clients = ledger.clients
        if len(clients):
            segments, rows = ledger.segments[clients], ledger.rows[clients]
            if segments.min() < 0 or segments.max() >= len(names):
                raise RunError("the ledger refers to segments that the manifest does not list")
            inside = (rows >= 0) & (rows < np.array(sizes)[segments])
            rows = (np.cumsum([0, *sizes[:-1]])[segments] + rows)[inside]
            agrees = np.concatenate([footer.clients for footer in footers])[rows] == clients[inside]
            agrees &= (
                np.concatenate([footer.checksums for footer in footers])[rows] == ledger.checksums[clients][inside]
            )
            if not inside.all() or not agrees.all():
                raise RunError("the client states do not match the ledger")
        return ledger

    def _bytes(self, path: str) -> bytes:
        if not self._filesystem.get_file_info(path).is_file:
            raise RunError(f"{path} is missing")
        with self._filesystem.open_input_file(path) as file:
            return bytes(file.read())

    def _folder(self, rounds: int) -> str:
        return f"{self._root}/round-{rounds:06d}"


def _is_dead(name: str, needed: set[str], rounds: int) -> bool:
    """Return whether a segment can no longer be needed.

    A segment of a committed round that is not needed is outdated, or from a host that was late or lost. Such a host may
    still be writing, so incomplete segments are kept for some more rounds.
    """
    complete = name.removesuffix(".part")
    return complete not in needed and round_of(name) < (rounds if name == complete else rounds - _PRUNE_ROUNDS)


def _manifest(content: Mapping[str, Any]) -> _Manifest:
    try:
        return _Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise RunError(f"manifest.json, {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _check_log(position: Position) -> None:
    """Raise an error if the log of a checkpoint does not contain each of its rounds once, in order."""
    found = [RoundRecord.model_validate_json(line).round for line in position.log.splitlines()]
    if found != list(range(position.rounds)):
        raise RunError("rounds.jsonl does not contain each round once, in order")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def difference(
    saved: Mapping[str, Any], current: Mapping[str, Any], prefix: str = "", where: str = "in the checkpoint"
) -> list[str]:
    """Return the settings in which two nested tables differ, each as "key = … in the checkpoint, … now"."""
    lines = []
    for key in sorted(saved.keys() | current.keys()):
        name, old, new = f"{prefix}{key}", saved.get(key), current.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += difference(old, new, f"{name}.", where)
        elif old != new:
            lines.append(f"{name} = {old!r} {where}, {new!r} now")
    return lines
