"""The logger ``ftcomm``: silent until asked, then job, rank, epoch and position on each line.

A library must not write to a terminal unasked, so the logger starts with a `NullHandler` alone.
`turn_on` (``FTCOMM_LOG``) attaches one handler to stderr; an application may attach its own
instead, and finds ``record.job``, ``record.rank``, ``record.epoch`` and ``record.position`` there.

Few warnings are written to stderr even where nobody listens (`JobLogger.warn_aloud`): those without
which a process that waits for long looks as if it hung, or one that is alone as if it were not.
"""

import logging
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, TextIO

LOGGER_NAME = "ftcomm"
FORMAT = (
    "%(asctime)s ftcomm %(levelname)s job=%(job)s rank=%(rank)s epoch=%(epoch)s"
    " position=%(position)s %(message)s"
)
UNKNOWN = "-"
FIRST_REMINDER_S = 3.0  # a tracker that is just starting is up by then
NEXT_REMINDER_S = 60.0

logging.getLogger(LOGGER_NAME).addHandler(logging.NullHandler())


@dataclass(slots=True)
class LogContext:
    """Position of a communicator for its log lines; the owner assigns fields, each line reads them.

    Single assignments are atomic under the interpreter's lock, so threads share one without
    another lock; a line may show an epoch and a position that never stood side by side.
    """

    job: str | None = None
    rank: int | None = None
    epoch: int | None = None
    position: object | None = None

    def fields(self) -> dict[str, object]:
        """The values for one line; what is unknown shows as ``-``."""
        values = {
            "job": self.job,
            "rank": self.rank,
            "epoch": self.epoch,
            "position": self.position,
        }
        return {name: UNKNOWN if value is None else value for name, value in values.items()}


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that puts its context's current values on each line."""

    def __init__(self, context: LogContext, *, name: str = LOGGER_NAME) -> None:
        super().__init__(logging.getLogger(name))
        self.context = context

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the context to the record; called by `logging` only for lines that are wanted."""
        kwargs["extra"] = {**self.context.fields(), **(kwargs.get("extra") or {})}
        return msg, kwargs

    def warn_aloud(self, msg: str, *args: object) -> None:
        """Warn, on stderr if no handler would show it; a level above WARNING silences that too."""
        self.warning(msg, *args)
        last_resort = logging.lastResort
        if last_resort and self.isEnabledFor(logging.WARNING) and not _is_heard(self.logger):
            text = f"ftcomm: {msg}"
            record = self.logger.makeRecord(
                self.logger.name, logging.WARNING, "", 0, text, args, None
            )
            last_resort.handle(record)


def _is_heard(logger: logging.Logger | None) -> bool:
    """True if a handler of `logger`, or of those that it passes its lines on to, writes them."""
    while logger is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


class Reminder:
    """Times of reminders that something is still awaited: after a few seconds, then each minute."""

    def __init__(self, now: float) -> None:
        """Begin to wait at `now`, on any clock."""
        self._due = now + FIRST_REMINDER_S

    def is_due(self, now: float) -> bool:
        """True if it is time to say so; the next time is a minute later."""
        if now < self._due:
            return False
        self._due = now + NEXT_REMINDER_S
        return True


class _Formatter(logging.Formatter):
    """Formats lines of plain loggers under ``ftcomm`` too, which carry no context."""

    def format(self, record: logging.LogRecord) -> str:
        for name, value in LogContext().fields().items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return super().format(record)


class _OwnHandler(logging.StreamHandler[TextIO]):
    """Ours, so that turning on twice does not print twice."""


def turn_on(level: str, *, stream: TextIO | None = None) -> logging.Handler:
    """Write lines of `level` (debug, info or warning) and above to `stream`, stderr by default.

    Called again, it changes level and stream of the one handler.  `turn_off` takes it away.
    """
    turn_off()
    handler = _OwnHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_Formatter(FORMAT))
    logger = logging.getLogger(LOGGER_NAME)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    return handler


def turn_off() -> None:
    """Be silent again; handlers of the application stay."""
    logger = logging.getLogger(LOGGER_NAME)
    for handler in [h for h in logger.handlers if isinstance(h, _OwnHandler)]:
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(logging.NOTSET)
