"""The daemon's log: one JSON object per line, in PERDURE_HOME/controller.log, rotated."""

from __future__ import annotations

import logging
import logging.handlers
import time
from collections.abc import Callable
from pathlib import Path

import structlog

_MAX_BYTES = 20 * 2**20
_BACKUP_COUNT = 3
_SERVER_LOG = "uvicorn.error"  # of the HTTP server, which warns of every invalid request
_MAX_REPEATS, _REPEAT_WINDOW_S = 5, 60.0
_MAX_TEXTS = 100


class RepeatLimit(logging.Filter):
    """Drops warnings and lesser messages of a text that was logged five times within a minute; errors always pass.

    The first of the next minute says how many were dropped. Anyone who can reach the port can cause such messages, from
    any number of addresses, and must not be able to push all others out of the log.
    """

    def __init__(self, elapsed: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._elapsed = elapsed
        self._counts: dict[str, tuple[float, int]] = {}  # by text: start of the window, messages in it

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            return True
        now, text = self._elapsed(), str(record.msg)
        if text not in self._counts and len(self._counts) >= _MAX_TEXTS:
            self._counts.clear()
        since, count = self._counts.get(text, (now, 0))
        if now - since >= _REPEAT_WINDOW_S:
            if count > _MAX_REPEATS:
                record.msg = f"{text} ({count - _MAX_REPEATS} more were not logged)"
            since, count = now, 0
        self._counts[text] = since, count + 1
        return count < _MAX_REPEATS


def configure_logging(home: Path, level: str) -> None:
    """Send the messages of structlog and of libraries to the file, from `level` on."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # Without local variables, which may contain users' secrets.
        structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False)),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    path = home / "controller.log"
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=_MAX_BYTES, backupCount=_BACKUP_COUNT)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(default=str),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    server = logging.getLogger(_SERVER_LOG)
    server.filters[:] = [RepeatLimit()]
    # They write a line per request, per tick or per message of a node; messages may contain users' secrets.
    for noisy in ("uvicorn.access", "apscheduler", "alembic", "websockets"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
