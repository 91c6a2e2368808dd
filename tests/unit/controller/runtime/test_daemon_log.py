"""The daemon's log: invalid requests cannot flood it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from websockets.protocol import Protocol, Side

from perdure.controller.runtime.daemon_log import RepeatLimit, configure_logging


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Puts back what `configure_logging` changes."""
    root, server = logging.getLogger(), logging.getLogger("uvicorn.error")
    handlers, level, filters = root.handlers[:], root.level, server.filters[:]
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:], server.filters[:] = handlers, filters
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.usefixtures("own_logging")
def test_log__keeps_few_of_many_invalid_requests(tmp_path: Path) -> None:
    configure_logging(tmp_path, "info")
    for _ in range(600):
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    logging.getLogger("uvicorn.error").warning("Unsupported upgrade request.")
    lines = [json.loads(line)["event"] for line in (tmp_path / "controller.log").read_text().splitlines()]
    assert lines == ["Invalid HTTP request received."] * 5 + ["Unsupported upgrade request."]


@pytest.mark.usefixtures("own_logging")
def test_log__has_no_messages_of_nodes(tmp_path: Path) -> None:
    configure_logging(tmp_path, "debug")
    logging.getLogger("another").debug("something else")
    Protocol(Side.SERVER).send_text(b"a secret")
    lines = [json.loads(line)["event"] for line in (tmp_path / "controller.log").read_text().splitlines()]
    assert lines == ["something else"]


def test_repeat_limit__counts_what_it_dropped() -> None:
    now = 0.0
    limit = RepeatLimit(lambda: now)
    passed = []
    for now in (*([0.0] * 20), 59.9, 60.0, 61.0):  # noqa: B007 # the limit reads it
        record = logging.LogRecord("uvicorn.error", logging.WARNING, "f", 1, "Invalid", (), None)
        if limit.filter(record):
            passed.append(record.getMessage())
    assert passed == ["Invalid"] * 5 + ["Invalid (16 more were not logged)", "Invalid"]


def test_repeat_limit__drops_no_error() -> None:
    limit = RepeatLimit()
    record = logging.LogRecord("uvicorn.error", logging.ERROR, "f", 1, "Exception in ASGI application", (), None)
    assert all(limit.filter(record) for _ in range(20))
