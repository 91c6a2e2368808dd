"""`perdure serve logs`: of a replica that never had a machine, and to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.sdk import serve
from unit.cli.commands import RunPerdure


def test_logs__of_a_replica_without_a_machine_say_so(perdure: RunPerdure, monkeypatch: pytest.MonkeyPatch) -> None:
    replicas: list[dict[str, Any]] = [
        {"number": 1, "status": "FAILED_PROVISION", "infra": "aws (a)", "ended_at": "x", "message": "no capacity"},
        {"number": 2, "status": "FAILED", "infra": "-", "ended_at": "x", "message": ""},
        {"number": 3, "status": "FAILED", "infra": "aws (a)", "ended_at": "x", "message": ""},
    ]
    monkeypatch.setattr(serve, "get", lambda *_words, **_options: {"replicas": replicas})
    monkeypatch.setattr(serve, "tail_logs", lambda *_words, **_options: 0)
    outputs = [perdure("serve", "logs", "model", number).output for number in (1, 2, 3)]
    assert outputs == ["Replica 1 of model had no machine: no capacity\n", "Replica 2 of model had no machine\n", ""]


def test_logs__are_downloaded(perdure: RunPerdure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []

    def download(name: str, replica_ids: Any, **_options: Any) -> Path:
        asked.append((name, replica_ids))
        return tmp_path

    entry = {"at": "2026-01-01T00:00:00Z", "kind": "service.scaled", "version": None, "replica": None, "message": "up"}
    monkeypatch.setattr(serve, "download_logs", download)
    monkeypatch.setattr(serve, "timeline", lambda *_words, limit=100, **_options: [entry] * limit)
    assert perdure("serve", "logs", "model", 2, 3, "--sync-down").output == f"Logs of model: {tmp_path}\n"
    assert not (tmp_path / "controller.log").exists()
    assert perdure("serve", "logs", "model", "-s").exit_code == 0
    assert asked == [("model", (2, 3)), ("model", None)]
    note, *lines = (tmp_path / "controller.log").read_text().splitlines()
    assert (note, len(lines)) == ("# The last 500 entries: earlier ones are not kept.", 500)
    assert lines[0].endswith("scaled: up")


@pytest.mark.parametrize("words", [(), (1, 2), (1, "--controller"), ("-s", "--load-balancer"), ("-s", "--tail", 3)])
def test_logs__of_an_unclear_source_are_refused(perdure: RunPerdure, words: tuple[Any, ...]) -> None:
    assert perdure("serve", "logs", "model", *words).exit_code == 2
