from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure.agent.storage.synced.manifest_order import in_order, is_waiting


def test_order__has_manifests_last() -> None:
    assert in_order(["run/.perdure/m-1.json", "run/a", ".perdure/x"]) == (
        ["run/a"],
        [".perdure/x", "run/.perdure/m-1.json"],
    )


LISTS_A = json.dumps({"files": [{"path": "step-1/a"}]})


@pytest.mark.parametrize(
    ("text", "pending", "waits"),
    [
        (LISTS_A, set(), False),
        (LISTS_A, {"run/step-1/a"}, True),
        (LISTS_A, {"run/step-1"}, True),  # a directory that cannot be read
        (LISTS_A, {"run/step-1/b", "run/conflict", "step-1/a"}, False),
        ("{", {"run/conflict"}, True),  # cannot be read: it may list any file of its save directory
        ("{", {"other/conflict", "run/.perdure/m-1.json"}, False),
        (json.dumps({"prefix": "x", "step": 1}), {"run/conflict"}, False),  # the record of a save that has begun
    ],
)
def test_manifest__waits_for_the_files_that_it_lists(tmp_path: Path, text: str, pending: set[str], waits: bool) -> None:
    (tmp_path / "run/.perdure").mkdir(parents=True)
    (tmp_path / "run/.perdure/m-1.json").write_text(text)
    assert is_waiting(str(tmp_path), "run/.perdure/m-1.json", pending) is waits
