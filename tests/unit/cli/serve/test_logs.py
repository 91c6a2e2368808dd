"""`perdure serve logs` of a replica that never had a machine."""

from __future__ import annotations

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
