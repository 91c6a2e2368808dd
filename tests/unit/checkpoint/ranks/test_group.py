"""Processes that communicate over files: the files that they leave behind, and the separation of attempts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from perdure.checkpoint.ranks.group import FilesGroup, PeersMissing


def test_files_group__removes_files_of_finished_topics(tmp_path: Path) -> None:
    topics = [f"save-{step}" for step in range(5)]

    def gather_all(rank: int) -> list[list[int]]:
        group = FilesGroup(str(tmp_path), rank, 3, timeout_s=60)
        return [group.all_gather(topic, rank * 10) for topic in topics]

    with ThreadPoolExecutor(3) as members:
        assert list(members.map(gather_all, range(3))) == [[[0, 10, 20]] * 5] * 3
    remaining = {path.name.partition(".")[0] for path in tmp_path.rglob("*.json")}
    assert remaining == {"save-4"}


def test_files_group__separates_generations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_GENERATION", "1")
    given_up = FilesGroup(str(tmp_path), 1, 2, timeout_s=0.3)
    monkeypatch.setenv("PERDURE_GENERATION", "2")
    now = FilesGroup(str(tmp_path), 0, 2, timeout_s=0.3)
    with ThreadPoolExecutor(2) as members:
        futures = [members.submit(one.all_gather, "load", None) for one in (given_up, now)]
        for one in futures:
            with pytest.raises(PeersMissing):
                one.result()
