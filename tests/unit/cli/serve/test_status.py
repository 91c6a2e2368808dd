"""`perdure serve status` of names that no service has."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.sdk import serve
from unit.cli.commands import RunPerdure

SERVICE: dict[str, Any] = {
    "name": "model", "version": 1, "uptime_s": 5.0, "status": "READY", "ready_replicas": 1, "target_replicas": 1,
    "endpoint": "http://127.0.0.1:1", "message": "", "replicas": [],
    "autoscaling_policy": "-", "load_balancing_policy": "-", "requested_resources": "-",
}  # fmt: skip


@pytest.mark.parametrize("output", ["table", "json"])
def test_status__of_an_unknown_name_fails(perdure: RunPerdure, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    monkeypatch.setattr(serve, "status", lambda *_words, **_options: [])
    result = perdure("serve", "status", "nope", "-o", output)
    assert (result.exit_code, result.stderr) == (102, "Service 'nope' not found.\n")
    assert "No live services" not in result.stdout, "others may exist"
    assert perdure("serve", "status", "no*", "-o", output).exit_code == 0
    monkeypatch.setattr(serve, "status", lambda *_words, **_options: [SERVICE])
    result = perdure("serve", "status", "model", "nope", "-o", output)
    assert result.exit_code == 102
    assert "READY" in result.stdout
    assert perdure("serve", "status", "model", "-o", output).exit_code == 0
