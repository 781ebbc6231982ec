"""Log rounds to `raybcgd.rounds` as structured records. Log steps, such as waiting for hosts, to `raybcgd.steps`.

Every record has `run`; records about a round have `round`, and those about a client also have `client`. Programs can
attach their own handlers. On the command line, `--log json` writes the records as JSON.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import IO, Any

from raybcgd.record.rounds import RoundRecord

log = logging.getLogger("raybcgd.rounds")
steps = logging.getLogger("raybcgd.steps")

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""Attributes of every log record; all others come from `extra`."""


def log_step(run: str, step: str, detail: str = "") -> None:
    """Log what a run does or waits for while no round ends."""
    steps.info(f"{step}: {detail}" if detail else step, extra={"run": run})


def log_round(record: RoundRecord, run: str) -> None:
    """Log a finished round, preceded by a warning for each dropped client and for lost hosts."""
    where = {"run": run, "round": record.round}
    for client in record.dropped:
        log.warning("client %d was dropped: %s", client.client, client.reason, extra={**where, "client": client.client})
    hosts = record.hosts
    if hosts.restarted or hosts.retried_tasks:
        lost = {"restarted": hosts.restarted, "retried_tasks": hosts.retried_tasks}
        log.warning("hosts restarted: %(restarted)d; tasks retried: %(retried_tasks)d", lost, extra={**where, **lost})
    numbers = {
        "accuracy": record.quality.accuracy,
        "loss": record.quality.loss,
        "train_loss": record.quality.train_loss,
        "upload_d_total": record.traffic.upload_d_total,
        "seconds": record.timing.seconds,
        "hosts": hosts.up,
        "participants": len(record.participants),
    }
    known = {name: value for name, value in numbers.items() if value is not None}
    log.info("round %d finished", record.round + 1, extra={**where, **known})


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time, level, logger, message and everything passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in record.__dict__.items() if name not in _STANDARD},
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_as_json(stream: IO[str] | None = None) -> logging.Handler:
    """Write all log records of raybcgd to a stream as JSON. Default: standard error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    ours = logging.getLogger("raybcgd")
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    ours.propagate = False
    return handler
