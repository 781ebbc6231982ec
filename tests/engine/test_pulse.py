"""Heartbeats: a host whose heartbeats stop is killed; one that sends them, or never sent any, is not."""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from raybcgd.engine.ray.pulse import PulseAddress, Pulses

HOST = """
import sys, time
from raybcgd.engine.ray.pulse import PulseAddress, beat
beat(PulseAddress(sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3])), int(sys.argv[4]))
print("up", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    sum(range(1000)) if sys.argv[5] == "busy" else time.sleep(0.1)
"""


def host(address: PulseAddress, number: int, work: str = "idle") -> subprocess.Popen[str]:
    words = [address.ip, str(address.port), address.token.hex(), str(number), work]
    process = subprocess.Popen([sys.executable, "-c", HOST, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.fixture
def pulses() -> Iterator[Pulses]:
    found = Pulses(limit_seconds=3)
    yield found
    found.close()


def test_only_a_host_that_falls_silent_is_killed(pulses: Pulses) -> None:
    killed: dict[int, threading.Event] = {number: threading.Event() for number in (1, 2, 3)}
    for number, event in killed.items():  # host 3 never sends anything
        pulses.watch(number, event.set)
    busy, stopped = host(pulses.address, 1, "busy"), host(pulses.address, 2)
    try:
        time.sleep(1.5)
        stopped.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        assert killed[2].wait(20)
        assert time.monotonic() - began > 1.5  # hosts 1 and 3 have been watched for longer than the limit
        assert not killed[1].is_set()
        assert not killed[3].is_set()
    finally:
        for process in (busy, stopped):
            process.kill()
            process.wait()


def test_a_host_that_is_no_longer_watched_is_not_killed(pulses: Pulses) -> None:
    killed = threading.Event()
    pulses.watch(1, killed.set)
    process = host(pulses.address, 1)
    time.sleep(1.5)
    pulses.forget(1)
    process.kill()
    process.wait()
    assert not killed.wait(4.5)


def test_datagrams_without_the_token_are_ignored(pulses: Pulses) -> None:
    """Otherwise, they could make a host look silent that never sent a heartbeat, or a dead one look alive."""
    killed = threading.Event()
    pulses.watch(1, killed.set)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for message in (b"", b"x" * 16 + (1).to_bytes(8, "big"), pulses.address.token, b"y" * 64):
            stranger.sendto(message, (pulses.address.ip, pulses.address.port))
    assert not killed.wait(4.5)
