"""`perdure status` of clusters that do not exist."""

from __future__ import annotations

import pytest

from perdure.sdk import clusters
from unit.cli.commands import RunPerdure


def test_status__of_an_unknown_cluster_says_nothing_of_others(
    perdure: RunPerdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "clusters", lambda *_names, **_options: [])
    result = perdure("status", "nope")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "Cluster 'nope' not found.\n")
    result = perdure("status", "nope", "-o", "json")
    assert (result.exit_code, result.stdout) == (1, "[]\n")
    result = perdure("status", "no*")
    assert (result.exit_code, result.stdout) == (0, "No cluster has a name that matches no*.\n")
