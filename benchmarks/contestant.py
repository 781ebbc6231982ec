"""Contestants: simulators that run rounds of a workload when it is their turn.

A contestant in its own process answers each line {"rounds": n} on stdin with a line of JSON: the time of each round in
seconds, and the training loss of its global model after them. It stays up between its turns, so start-up is not
measured. This module needs only the standard library, because the environment of the peers imports it too.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol, TextIO


class Turn(NamedTuple):
    """What a contestant did in one turn."""

    seconds: list[float]
    """Time of each round."""
    loss: float
    """Training loss of the global model after the last round."""


class Contestant(Protocol):
    """A simulator with one workload."""

    name: str

    def turn(self, rounds: int) -> Turn:
        """Run rounds and return their times."""

    def close(self) -> None:
        """Stop the contestant."""


def serve(run: Callable[[int], Turn]) -> None:
    """Answer commands on stdin until it is closed. `run` runs a number of rounds."""
    # Libraries print to stdout; the answers need a channel of their own.
    with os.fdopen(os.dup(1), "w", buffering=1) as channel:
        os.dup2(2, 1)
        _answer(channel, {})
        for line in sys.stdin:
            _answer(channel, run(json.loads(line)["rounds"])._asdict())


def _answer(channel: TextIO, message: dict[str, object]) -> None:
    channel.write(json.dumps(message) + "\n")
    channel.flush()


class Process:
    """A contestant in a process of its own. The process is suspended while it is not its turn."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name, self._log = name, log
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            )
        self._read()
        self._process.send_signal(signal.SIGSTOP)

    def turn(self, rounds: int) -> Turn:
        """Run rounds and return their times."""
        self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"rounds": rounds}) + "\n")
        self._process.stdin.flush()
        turn = Turn(**self._read())
        # Flower polls all its nodes ten times per second even when it is idle, which would slow down the others.
        self._process.send_signal(signal.SIGSTOP)
        return turn

    def close(self) -> None:
        """Close stdin, which ends the process."""
        self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _read(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            tail = "\n".join(self._log.read_text().splitlines()[-20:])
            raise SystemExit(f"{self.name} stopped: exit code {self._process.wait()}; its last lines were:\n{tail}")
        message: dict[str, object] = json.loads(line)
        return message
