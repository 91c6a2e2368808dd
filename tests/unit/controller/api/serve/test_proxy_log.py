"""What the log of a proxy says about the duration of requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.controller.api.serve import proxy_log
from perdure.controller.api.serve.proxy_log import ProxyLogFile
from perdure.controller.maintenance.serve.proxy_state import RequestTimes

LINE = "27/Nov/2026:02:00:00.000 127.0.0.1 POST /v1/completions 200 815 {total} {first} s0 --\n"


def line(total_ms: int, first_ms: int) -> str:
    return LINE.format(total=total_ms, first=first_ms)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "1.log"
    path.write_text(line(1, 1))  # of an earlier daemon
    return path


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_log__is_read_once_in_whole_lines(path: Path) -> None:
    log = ProxyLogFile(path)
    append(path, line(2500, 40) + "[WARNING] (1): what HAProxy says\n" + line(7, -1)[:-5])
    assert log.read_new() == [RequestTimes(2.5, 0.04)]
    append(path, line(7, -1)[-5:])
    assert log.read_new() == [RequestTimes(0.007, None)], "there was no answer of a replica"
    assert log.read_new() == []


def test_log__of_a_burst_is_read_in_part(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_log, "MAX_READ_BYTES", 3 * len(line(1000, 1000)))
    log = ProxyLogFile(path)
    append(path, "".join(line(ms, ms) for ms in range(1000, 1010)))
    assert log.read_new() == [RequestTimes(ms / 1000, ms / 1000) for ms in (1008, 1009)]


def test_log__that_is_trimmed_is_read_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ProxyLogFile(path)
    append(path, line(3, 3))
    log.read_new()
    monkeypatch.setattr(proxy_log, "MAX_BYTES", 10)
    log.trim()
    assert (path.read_text(), path.with_suffix(".log.1").exists()) == ("", True)
    append(path, line(4, 4))
    assert log.read_new() == [RequestTimes(0.004, 0.004)]


def test_log__that_is_missing_says_nothing(tmp_path: Path) -> None:
    log = ProxyLogFile(tmp_path / "none")
    log.trim()
    assert log.read_new() == []
