"""[Ray] Heartbeats: every host sends a datagram each second, even while it trains. A silent host is killed.

Ray itself does not notice a process that is stopped or hangs, and a call to it would never return. After the kill, the
call raises the same error as for any host that died.
"""

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import ray

log = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
"""Time between a host's heartbeats."""


class PulseAddress(NamedTuple):
    """Where hosts send their heartbeats."""

    ip: str
    port: int
    token: bytes
    """Datagrams without it are ignored."""


def beat(address: PulseAddress, number: int) -> None:
    """Send the heartbeats of host `number` from a thread, until this process ends."""
    threading.Thread(target=_beat, args=(address, number), daemon=True, name="pulse").start()


def _beat(address: PulseAddress, number: int) -> None:
    sender = _socket(address.ip)
    while True:
        try:
            sender.sendto(address.token + number.to_bytes(8, "big"), (address.ip, address.port))
        except OSError as error:
            log.warning("cannot send a heartbeat to %s: %s", address.ip, error)
        time.sleep(BEAT_SECONDS)


class Pulses:
    """Listens for heartbeats, and kills a host whose heartbeats stop. A host that never sent one is left alone."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit = limit_seconds
        ip = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        self._socket = _socket(ip)
        try:
            self._socket.bind((ip, 0))
        except OSError:  # the node's address belongs to another machine, which forwards to this one
            self._socket.bind(("", 0))
        self.address = PulseAddress(ip, self._socket.getsockname()[1], secrets.token_bytes(16))
        self._kill: dict[int, Callable[[], None]] = {}
        self._silence: dict[int, float] = {}
        """Seconds since each host's last heartbeat. Only time in which this thread ran counts, so hosts do not look
        dead because this machine was busy or suspended."""
        self._open = True
        self._thread = threading.Thread(target=self._listen, daemon=True, name="pulses")
        self._thread.start()

    def watch(self, number: int, kill: Callable[[], None]) -> None:
        """Watch a host. If its heartbeats stop, call `kill`."""
        self._kill[number] = kill

    def forget(self, number: int) -> None:
        """Stop watching a host."""
        self._kill.pop(number, None)
        self._silence.pop(number, None)

    def close(self) -> None:
        """Stop listening."""
        self._open = False
        self._socket.sendto(b"", self._socket.getsockname())  # wakes the thread
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while self._open:
            heard = self._heard()
            for number, kill in list(self._kill.items()):
                if number in heard:
                    self._silence[number] = 0.0
                elif number in self._silence:
                    self._silence[number] += BEAT_SECONDS
                if self._silence.get(number, 0.0) >= self._limit:
                    self.forget(number)
                    log.warning("host %d sent no heartbeat for %g s; replacing it", number, self._limit)
                    kill()

    def _heard(self) -> set[int]:
        """Return the hosts whose heartbeats arrive within the next second, or are already waiting to be read."""
        heard: set[int] = set()
        deadline, token = time.monotonic() + BEAT_SECONDS, self.address.token
        while self._open:
            left = deadline - time.monotonic()
            self._socket.settimeout(max(left, 1e-6))
            try:
                message = self._socket.recv(64)
            except TimeoutError:
                if left <= 0:
                    break
                continue
            if len(message) == len(token) + 8 and secrets.compare_digest(message[: len(token)], token):
                heard.add(int.from_bytes(message[len(token) :], "big"))
        return heard


def _socket(ip: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_DGRAM)
