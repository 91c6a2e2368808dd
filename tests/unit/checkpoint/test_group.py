"""Processes that meet over files: what they leave behind, and that an attempt that was given up does not answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from perdure.checkpoint.group import FilesGroup, PeersMissing


def test_topics_that_are_over_leave_no_files(tmp_path: Path) -> None:
    topics = [f"save-{step}" for step in range(5)]

    def talk(rank: int) -> list[list[int]]:
        group = FilesGroup(str(tmp_path), rank, 3, timeout_s=60)
        return [group.share(topic, rank * 10) for topic in topics]

    with ThreadPoolExecutor(3) as members:
        assert list(members.map(talk, range(3))) == [[[0, 10, 20]] * 5] * 3
    left = {path.name.partition(".")[0] for path in tmp_path.rglob("*.json")}
    assert left == {"save-4"}


def test_attempts_do_not_hear_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_GENERATION", "1")
    given_up = FilesGroup(str(tmp_path), 1, 2, timeout_s=0.3)
    monkeypatch.setenv("PERDURE_GENERATION", "2")
    now = FilesGroup(str(tmp_path), 0, 2, timeout_s=0.3)
    with ThreadPoolExecutor(2) as members:
        said = [members.submit(one.share, "load", None) for one in (given_up, now)]
        for one in said:
            with pytest.raises(PeersMissing):
                one.result()
