"""The daemon's own log: one JSON object a line, in PERDURE_HOME/controller.log, rotated."""

from __future__ import annotations

import logging
import logging.handlers
from pathlib import Path

import structlog

_MOST_BYTES = 20 * 2**20
_KEPT = 3


def configure_logging(home: Path, level: str) -> None:
    """Send structlog, and what libraries log, to the file."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # Without local variables: they hold users' secrets.
        structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False)),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    path = home / "controller.log"
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=_MOST_BYTES, backupCount=_KEPT)
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
    # One line a request, and one a tick, would drown what matters.
    for noisy in ("uvicorn.access", "apscheduler", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
