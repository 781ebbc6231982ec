"""Rounds as structured log records: every one has `run` and `round`, those about a client `client` too.

They go to the logger `raybcgd.rounds`. A program that uses raybcgd attaches what handlers it likes; the command line
writes them as JSON with `--log json`.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import IO, Any

from raybcgd.record.rounds import RoundRecord

log = logging.getLogger("raybcgd.rounds")

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""What every log record has; whatever else one has was given as `extra`."""


def log_round(record: RoundRecord, run: str) -> None:
    """A round is done: a record for it, and a warning for each thing that went wrong in it."""
    where = {"run": run, "round": record.round}
    for client in record.dropped:
        log.warning("client %d was dropped: %s", client.client, client.reason, extra={**where, "client": client.client})
    if record.restarted or record.retried:
        lost = {"restarted": record.restarted, "retried": record.retried}
        log.warning("%(restarted)d hosts were lost; %(retried)d jobs were done again", lost, extra={**where, **lost})
    if log.isEnabledFor(logging.INFO):
        numbers = {
            "accuracy": record.accuracy,
            "loss": record.loss,
            "train_loss": record.train_loss,
            "upload_d": record.upload_d_total,
            "seconds": record.seconds,
            "hosts": record.hosts,
            "participants": len(record.participants),
        }
        known = {name: value for name, value in numbers.items() if value is not None}
        log.info("round %d is done", record.round, extra={**where, **known})


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and whatever was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in record.__dict__.items() if name not in _PLAIN},
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_as_json(stream: IO[str] | None = None) -> logging.Handler:
    """From now on, write all of raybcgd's log records to a stream, standard error unless given."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    ours = logging.getLogger("raybcgd")
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    ours.propagate = False
    return handler
