"""What a client keeps between rounds: immutable files, one a version, with the latest ones held in memory.

A state is named by its client and the number of the round that it waits for; a new version never overwrites an old
one, so a round that does not commit leaves nothing behind that anybody would read. The files are what survives a
host or a node, what a checkpoint refers to, and where states go that do not fit the memory budget.
"""

import json
import os
import tempfile
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import fs
from safetensors.numpy import save

from raybcgd.errors import ConfigError, RunError

State = dict[str, np.ndarray]
"""Named vectors: the algorithm's client state, and what a codec with memory keeps."""


class StateRef(NamedTuple):
    """A committed state: which version, and the checksum of its file."""

    version: int
    checksum: int


FRESH = StateRef(-1, 0)
"""A client that has not taken part yet."""

_CHUNK_BYTES = 2**23
"""Memory is taken in pieces of this size, so that a large budget costs nothing until it is used."""


class StateFolder:
    """State files under a folder of any file system that pyarrow knows."""

    def __init__(self, address: str) -> None:
        self._filesystem, self._root = open_address(address)
        self.local = isinstance(self._filesystem, fs.LocalFileSystem)
        self._made: set[str] = set()

    def make(self) -> None:
        """Make the folder, so that who does not see it knows that it is on another machine."""
        self._filesystem.create_dir(self._root, recursive=True)

    @property
    def seen(self) -> bool:
        """Whether this machine sees the folder; where every machine does, that need not be asked."""
        return not self.local or self._filesystem.get_file_info(self._root).type == fs.FileType.Directory

    def _path(self, client: int, version: int) -> str:
        return f"{self._root}/{client % 1000:03d}/{client}-{version}.safetensors"

    def write(self, client: int, version: int, state: State) -> StateRef:
        """Write a version. Writing it again, with the same content, is harmless."""
        data = save(state)
        path = self._path(client, version)
        folder = path.rpartition("/")[0]
        if folder not in self._made:
            self._filesystem.create_dir(folder, recursive=True)
            self._made.add(folder)
        write_file(self._filesystem, path, data)
        return StateRef(version, zlib.crc32(data))

    def read(self, client: int, ref: StateRef) -> State:
        """Read a version back, memory-mapped where the file system can."""
        path = self._path(client, ref.version)
        try:
            with self._filesystem.open_input_file(path) as file:
                data = file.read_buffer()
        except FileNotFoundError:
            raise RunError(f"the state of client {client} after round {ref.version - 1} is missing at {path}") from None
        if zlib.crc32(data) != ref.checksum:
            raise RunError(f"the state of client {client} after round {ref.version - 1} is damaged at {path}")
        return _arrays(data)

    def keep_only(self, wanted: set[tuple[int, int]]) -> None:
        """Delete every version but these: what rounds have left behind that will be done again."""
        selector = fs.FileSelector(self._root, recursive=True, allow_not_found=True)
        for entry in self._filesystem.get_file_info(selector):
            if entry.type != fs.FileType.File:
                continue
            client, _, version = entry.base_name.removesuffix(".safetensors").rpartition("-")
            if not (client.isdigit() and version.isdigit() and (int(client), int(version)) in wanted):
                self._filesystem.delete_file(entry.path)

    def remove(self, versions: Iterable[tuple[int, int]]) -> None:
        """Delete versions that nothing refers to any more."""
        for client, version in versions:
            try:
                self._filesystem.delete_file(self._path(client, version))
            except FileNotFoundError:
                continue


class StateCache:
    """The latest states of the clients homed here, in memory up to a budget; the rest stay in their files.

    States are copied into rows of a few large arrays, which are never given back: vectors allocated one by one would
    leave gaps between them, and a host would take half as much again as its budget.
    """

    def __init__(self, folder: StateFolder, budget_bytes: int) -> None:
        self._folder = folder
        self._budget = budget_bytes
        self._held: OrderedDict[int, tuple[StateRef, State]] = OrderedDict()
        self._free: list[State] = []
        self._made = 0
        self._spilled: dict[int, tuple[StateRef, State]] = {}
        self.bytes = 0

    def get(self, client: int, ref: StateRef) -> State:
        """The state of a client at a committed version, to keep for as long as one likes."""
        held = self._held.get(client)
        if held is not None and held[0] == ref:
            self._held.move_to_end(client)
            return {name: array.copy() for name, array in held[1].items()}
        spilled = self._spilled.get(client)
        return spilled[1] if spilled is not None and spilled[0] == ref else self._folder.read(client, ref)

    def put(self, client: int, version: int, state: State) -> StateRef:
        """Make a new version durable and keep it at hand; it counts once the round commits."""
        ref = self._folder.write(client, version, state)
        self._spilled.pop(client, None)
        old = self._held.pop(client, None)
        row = self._row_for(state) if old is None else old[1]
        if row is None:
            self._spill(client, ref, state)
            return ref
        for name, array in state.items():
            row[name][...] = array
        self._held[client] = (ref, row)
        self.bytes = len(self._held) * _size(state)
        return ref

    def _row_for(self, state: State) -> State | None:
        """Room for one more: a free row, a new one, or that of the state that was used longest ago."""
        size = _size(state)
        if not self._free:
            count = min((self._budget - self._made) // max(size, 1), -(-_CHUNK_BYTES // max(size, 1)))
            vectors = {name: np.empty((count, *array.shape), array.dtype) for name, array in state.items()}
            self._free = [{name: vector[k] for name, vector in vectors.items()} for k in range(count)]
            self._made += count * size
        if self._free:
            return self._free.pop()
        if not self._held:
            return None
        client, (ref, row) = self._held.popitem(last=False)
        self._spill(client, ref, row)
        return row

    def _spill(self, client: int, ref: StateRef, state: State) -> None:
        """Let a state go from memory to this machine's disk."""
        if not self._folder.local:  # else its file is on a disk of this machine already
            self._spilled[client] = (ref, _on_disk(state))


def open_address(address: str) -> tuple[fs.FileSystem, str]:
    """A pyarrow file system and a path in it, from a folder or an address such as s3://bucket/path."""
    if "://" in address:
        try:
            filesystem, path = fs.FileSystem.from_uri(address)
        except (OSError, pa.ArrowException) as error:
            reason = str(error).strip().split("\n")[0]
            raise ConfigError(f'checkpoint.address = "{address}" cannot be used: {reason}; correct it') from None
        return filesystem, str(path)
    return fs.LocalFileSystem(use_mmap=True), os.path.abspath(address)


def write_file(filesystem: fs.FileSystem, path: str, data: bytes) -> None:
    """Write a whole file or none of it."""
    # An object store shows an object only once it is complete; a folder needs the detour.
    local = isinstance(filesystem, fs.LocalFileSystem)
    target = f"{path}.{os.getpid()}.part" if local else path
    with filesystem.open_output_stream(target) as stream:
        stream.write(data)
    if local:
        filesystem.move(target, path)


def _on_disk(state: State) -> State:
    """The same vectors, memory-mapped from a file without a name, which goes when this process does."""
    mapped = {}
    for name, array in state.items():
        with tempfile.TemporaryFile() as file:
            array.tofile(file)
            file.flush()
            mapped[name] = np.memmap(file, array.dtype, "r", shape=array.shape) if array.size else array
    return mapped


def _size(state: State) -> int:
    return sum(array.nbytes for array in state.values())


def _arrays(data: pa.Buffer) -> State:
    """The arrays of a safetensors file as views of its (mapped) bytes, which the library itself would copy."""
    header_length = int.from_bytes(memoryview(data)[:8], "little")
    header = json.loads(bytes(memoryview(data)[8 : 8 + header_length]))
    types = {"F32": np.float32, "F64": np.float64}
    start = 8 + header_length
    arrays = {}
    for name, entry in header.items():
        low, high = entry["data_offsets"]
        kind = np.dtype(types[entry["dtype"]])
        arrays[name] = np.frombuffer(data, kind, (high - low) // kind.itemsize, start + low).reshape(entry["shape"])
    return arrays
