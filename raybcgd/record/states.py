"""Client states in segments: files that hold the states of many clients, one row per client.

A segment is written once, by one call of a host or by a compaction, and never changes. Its name is unique, so a late
write of a host that was replaced cannot damage anything. Nothing reads the rows of a round that did not commit.
Checkpoints refer to rows.

    magic                   16 bytes
    rows                    `StateLayout.row_bytes` each
    footer                  JSON: round, layout, and the client and checksum (CRC-32) of every row
    length and checksum     of the footer, 4 bytes each, little-endian
"""

import json
import re
import secrets
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from pyarrow import fs

from raybcgd.errors import RunError
from raybcgd.messages import StateRef
from raybcgd.record.state_layout import StateLayout
from raybcgd.storage import FORMAT_VERSION, open_address

_MAGIC = b"raybcgd-states\x00\x00"
_END = struct.Struct("<II")
_TAIL_BYTES = 2**16
"""Size of the first read, from the end of a segment. Most footers are smaller, so one read is enough."""
_THREADS = 16
_NAME = re.compile(r"(\d{6,})-[0-9a-f]{16}(\.merged)?\.seg(\.part)?")


class Footer(NamedTuple):
    """What a segment holds."""

    clients: np.ndarray
    """The client of each row."""
    checksums: np.ndarray
    """The CRC-32 of each row."""


class SegmentFile:
    """A segment while it is being written. Readers see it after it is closed."""

    def __init__(self, filesystem: fs.FileSystem, path: str, header: dict[str, Any]) -> None:
        self._filesystem, self._path, self._header = filesystem, path, header
        renames = isinstance(filesystem, fs.LocalFileSystem)
        self._part = f"{path}.part" if renames else path  # an object appears only when it is complete
        self._stream = filesystem.open_output_stream(self._part)
        self._stream.write(_MAGIC)
        self._clients: list[int] = []
        self._checksums: list[int] = []

    def append(self, clients: Iterable[int], rows: np.ndarray, checksums: Iterable[int]) -> None:
        """Write rows."""
        self._clients += clients
        self._checksums += checksums
        self._stream.write(rows)

    def close(self) -> None:
        """Write the footer and make the segment visible."""
        footer = json.dumps({**self._header, "clients": self._clients, "checksums": self._checksums}).encode()
        self._stream.write(footer + _END.pack(len(footer), zlib.crc32(footer)))
        self._stream.close()
        if self._part != self._path:
            self._filesystem.move(self._part, self._path)

    def discard(self) -> None:
        """Remove an incomplete segment."""
        with suppress(OSError):
            self._stream.close()
        with suppress(OSError):
            self._filesystem.delete_file(self._part)


class SegmentFolder:
    """The segments of a run, in a folder of any file system that pyarrow supports."""

    def __init__(self, address: str, layout: StateLayout) -> None:
        self.layout = layout
        self._filesystem, self._root = open_address(address)
        self.local = isinstance(self._filesystem, fs.LocalFileSystem)
        self._threads = ThreadPoolExecutor(_THREADS, "client-states")
        self._made = False

    def make(self) -> None:
        """Create the folder. A host that does not see it shares no file system with the server."""
        self._filesystem.create_dir(self._root, recursive=True)
        self._made = True

    @property
    def seen(self) -> bool:
        """Whether this machine can reach the folder."""
        return not self.local or self._filesystem.get_file_info(self._root).type == fs.FileType.Directory

    def path(self, name: str) -> str:
        """Return the path of a segment."""
        return f"{self._root}/{name}"

    def create(self, name: str) -> SegmentFile:
        """Start a new segment. Its name is from `new_name`."""
        if not self._made:
            self.make()
        header = {"version": FORMAT_VERSION, "round": round_of(name), "layout": self.layout.arrays}
        return SegmentFile(self._filesystem, self.path(name), header)

    def read(self, wanted: Sequence[tuple[int, StateRef]]) -> np.ndarray:
        """Read and verify the rows of (client, ref) pairs. Adjacent rows are read at once, others in parallel."""
        rows = np.empty((len(wanted), self.layout.row_bytes), dtype=np.uint8)
        runs: list[list[int]] = []
        last = None
        for number in sorted(range(len(wanted)), key=lambda k: wanted[k][1]):
            ref = wanted[number][1]
            if last is None or (ref.segment, ref.row) != (last.segment, last.row + 1):
                runs.append([])
            runs[-1].append(number)
            last = ref
        self._in_parallel(lambda run: self._read_run([wanted[k] for k in run], run, rows), runs)
        return rows

    def _read_run(self, wanted: Sequence[tuple[int, StateRef]], numbers: list[int], rows: np.ndarray) -> None:
        """Read adjacent rows of a segment into `rows[numbers]`."""
        (client, ref), size = wanted[0], self.layout.row_bytes
        start = len(_MAGIC) + ref.row * size
        try:
            with self._filesystem.open_input_file(self.path(ref.segment)) as file:
                if start + size * len(wanted) > file.size():
                    raise self._fault(client, ref, "damaged")
                file.seek(start)
                data = np.frombuffer(file.read_buffer(size * len(wanted)), np.uint8).reshape(-1, size)
                rows[numbers] = data
        except FileNotFoundError:
            raise self._fault(client, ref, "missing") from None
        for number, (client, ref) in zip(numbers, wanted, strict=True):
            if zlib.crc32(rows[number]) != ref.checksum:
                raise self._fault(client, ref, "damaged")

    def _fault(self, client: int, ref: StateRef, what: str) -> RunError:
        return RunError(
            f"the state of client {client} as of round {round_of(ref.segment) + 1} is {what} at "
            f"{self.path(ref.segment)}; restore the file, or delete the newest folder in checkpoints/ "
            "and resume from the one before"
        )

    def footers(self, names: Iterable[str]) -> dict[str, Footer]:
        """Read and verify the footers of segments."""
        names = list(names)
        return dict(zip(names, self._in_parallel(self._footer, names), strict=True))

    def _footer(self, name: str) -> Footer:
        path = self.path(name)
        if not _NAME.fullmatch(name):
            raise RunError(f"{name!r} is not the name of a segment of client states")
        try:
            with self._filesystem.open_input_file(path) as file:
                size = file.size()
                tail = file.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
                length, checksum = _END.unpack(tail[-_END.size :]) if size > _END.size else (0, 0)
                if _END.size + length > len(tail) and size > _END.size + length:
                    tail = file.read_at(length + _END.size, size - length - _END.size)
        except FileNotFoundError:
            raise RunError(f"the client states at {path} are missing") from None
        footer = tail[-_END.size - length : -_END.size]
        if not length or len(footer) != length or zlib.crc32(footer) != checksum:
            raise RunError(f"the client states at {path} are damaged: the footer does not match its checksum")
        content = json.loads(footer)
        if content["layout"] != json.loads(json.dumps(self.layout.arrays)):
            raise RunError(f"the client states at {path} are those of another method, codec or model")
        if size != len(_MAGIC) + len(content["clients"]) * self.layout.row_bytes + length + _END.size:
            raise RunError(f"the client states at {path} are damaged: the file has the wrong size")
        return Footer(np.array(content["clients"], np.int64), np.array(content["checksums"], np.uint32))

    def names(self, parts: bool = False) -> list[str]:
        """Return the names of all segments; with `parts`, also of incomplete ones. Other files are ignored."""
        entries = self._filesystem.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        found = [(entry.base_name, _NAME.fullmatch(entry.base_name)) for entry in entries if entry.is_file]
        return [name for name, match in found if match and (parts or not match[3])]

    def remove(self, names: Iterable[str]) -> None:
        """Delete segments."""

        def delete(name: str) -> None:
            with suppress(FileNotFoundError):
                self._filesystem.delete_file(self.path(name))

        self._in_parallel(delete, list(names))

    def _in_parallel(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Apply a function to all items, in threads."""
        return [function(items[0])] if len(items) == 1 else list(self._threads.map(function, items))


def new_name(round_index: int, merged: bool = False) -> str:
    """Return a unique name for a segment with the states after a round, or with states merged from other segments."""
    return f"{round_index:06d}-{secrets.token_hex(8)}{'.merged' if merged else ''}.seg"


def round_of(name: str) -> int:
    """Return the round in a segment's name. No row of the segment is from a later round."""
    return int(name.partition("-")[0])


def is_merged(name: str) -> bool:
    """Return whether the rows of a segment were copied from other segments."""
    return name.endswith(".merged.seg")
