"""Client states in files: one immutable file per client and version.

A version is the index of the round that wrote it, plus 1. A new version never overwrites an old one, and nothing reads
the files of a round that did not commit. The files outlive hosts and nodes, and checkpoints refer to them.
"""

import json
import zlib
from collections.abc import Iterable
from contextlib import suppress

import numpy as np
import pyarrow as pa
from pyarrow import fs
from safetensors.numpy import save

from raybcgd.errors import RunError
from raybcgd.messages import StateRef
from raybcgd.storage import open_address, write_file

State = dict[str, np.ndarray]
"""Named arrays: the algorithm's client state, and the residuals of a codec with error feedback."""


class StateFolder:
    """State files in a folder of any file system that pyarrow supports."""

    def __init__(self, address: str) -> None:
        self._filesystem, self._root = open_address(address)
        self.local = isinstance(self._filesystem, fs.LocalFileSystem)
        self._made: set[str] = set()

    def make(self) -> None:
        """Create the folder. A host that does not see it knows that it shares no file system with the server."""
        self._filesystem.create_dir(self._root, recursive=True)

    @property
    def seen(self) -> bool:
        """Whether this machine can reach the folder."""
        return not self.local or self._filesystem.get_file_info(self._root).type == fs.FileType.Directory

    def _path(self, client: int, version: int) -> str:
        return f"{self._root}/{client % 1000:03d}/{client}-{version}.safetensors"

    def write(self, client: int, version: int, state: State) -> StateRef:
        """Write a version. Writing the same version again is harmless."""
        data = save(state)
        path = self._path(client, version)
        folder = path.rpartition("/")[0]
        if folder not in self._made:
            self._filesystem.create_dir(folder, recursive=True)
            self._made.add(folder)
        write_file(self._filesystem, path, data)
        return StateRef(version, zlib.crc32(data))

    def read(self, client: int, ref: StateRef) -> State:
        """Read a version, memory-mapped if the file system allows it."""
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
        """Delete all versions except `wanted`. The deleted ones are from rounds that will be repeated."""
        names = {f"{client}-{version}.safetensors" for client, version in wanted}
        selector = fs.FileSelector(self._root, recursive=True, allow_not_found=True)
        for entry in self._filesystem.get_file_info(selector):
            if entry.type == fs.FileType.File and entry.base_name not in names:
                self._filesystem.delete_file(entry.path)

    def remove(self, versions: Iterable[tuple[int, int]]) -> None:
        """Delete versions that no checkpoint refers to."""
        for client, version in versions:
            with suppress(FileNotFoundError):
                self._filesystem.delete_file(self._path(client, version))


def _arrays(data: pa.Buffer) -> State:
    """Return the arrays of a safetensors file as views of its mapped bytes. The library would copy them."""
    start = 8 + int.from_bytes(data[:8].to_pybytes(), "little")
    types = {"F32": np.float32, "F64": np.float64, "I64": np.int64}
    arrays = {}
    for name, entry in json.loads(data[8:start].to_pybytes()).items():
        low, high = entry["data_offsets"]
        kind = np.dtype(types[entry["dtype"]])
        arrays[name] = np.frombuffer(data, kind, (high - low) // kind.itemsize, start + low).reshape(entry["shape"])
    return arrays
