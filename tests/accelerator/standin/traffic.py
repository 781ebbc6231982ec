"""Count copies between the host and the devices of this process."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from standin.build import load

_Row = tuple[bool, str]
"""A direction, true to the device, and the Python line that caused the copies."""


class Traffic:
    """Copies in one direction, in total and by the Python line that caused them."""

    def __init__(self, copies: Counter[str], sizes: Counter[str]) -> None:
        self.copies_by_line, self.bytes_by_line = copies, sizes

    @property
    def copies(self) -> int:
        """The number of copies."""
        return self.copies_by_line.total()

    @property
    def bytes(self) -> int:
        """The bytes copied."""
        return self.bytes_by_line.total()

    def __repr__(self) -> str:
        rows = [f"{self.copies} copies, {self.bytes} bytes"]
        for line, size in self.bytes_by_line.most_common():
            short = "/".join(line.split("/")[-3:])
            rows.append(f"{self.copies_by_line[line]} x {short}, {size} bytes")
        return "\n".join(rows)


class Copies:
    """The copies since this object was created, until `stop`."""

    def __init__(self) -> None:
        self._before, self._after = _counts(), None

    def stop(self) -> None:
        """Stop counting."""
        self._after = _counts()

    @property
    def to_device(self) -> Traffic:
        """Copies from the host to a device."""
        return self._traffic(True)

    @property
    def to_host(self) -> Traffic:
        """Copies from a device to the host, including values that Python reads."""
        return self._traffic(False)

    def _traffic(self, to_device: bool) -> Traffic:
        after = self._after or _counts()
        differences = [Counter(now) for now in after]
        for now, before in zip(differences, self._before, strict=True):
            now.subtract(before)
        copies, sizes = ({line: n for (way, line), n in now.items() if way == to_device and n} for now in differences)
        return Traffic(Counter(copies), Counter(sizes))


@contextmanager
def counting() -> Iterator[Copies]:
    """Count the copies during a `with` block, in all threads of this process."""
    copies = Copies()
    try:
        yield copies
    finally:
        copies.stop()


def _counts() -> tuple[Counter[_Row], Counter[_Row]]:
    rows = load().copies()
    copies = Counter({(to_device, line): count for to_device, line, count, _ in rows})
    return copies, Counter({(to_device, line): size for to_device, line, _, size in rows})
