"""The save at a notice."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from perdure.checkpoint import durability
from perdure.checkpoint.farewell import MARGIN_S, Farewell


@pytest.fixture
def farewell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Farewell:
    """At time 1000, with a notice for 1000 + 30 + the margin."""
    monkeypatch.setenv("PERDURE_RUN_DIR", str(tmp_path))
    (tmp_path / "notice.json").write_text(json.dumps({"deadline": 1030 + MARGIN_S}))
    return Farewell(now=lambda: 1000.0)


def test_a_save_that_can_not_end_in_time_is_not_begun(farewell: Farewell, caplog: pytest.LogCaptureFixture) -> None:
    assert farewell.can_commit()  # nothing measured yet: try
    farewell.commit_s = 29
    assert farewell.can_commit()
    farewell.commit_s = 31
    assert not farewell.can_commit()
    assert not farewell.can_commit()
    assert caplog.text.count("a save takes 31.0 s, and the machine is taken in 30.0 s") == 1


def test_without_a_deadline_there_is_always_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_RUN_DIR", raising=False)
    assert Farewell(commit_s=1e9).can_commit()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (True, "step 7 is in the bucket, 30.0 s to spare"),
        (False, "was not in the bucket when the time was up; an older one will be loaded"),
        (None, "can not be told here"),
    ],
)
def test_says_how_it_ended(
    farewell: Farewell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answer: bool | None,
    says: str,
) -> None:
    waited = []
    monkeypatch.setattr(
        durability, "wait_durable", lambda paths, *, timeout_s: waited.append((paths, timeout_s)) or answer
    )
    with caplog.at_level(logging.INFO):
        assert farewell.upload(7, [str(tmp_path / "x")]) is answer
    assert waited == [([str(tmp_path / "x")], 30.0)]
    assert says in caplog.text


def test_warns_when_the_upload_is_too_slow_for_the_time(
    farewell: Farewell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(durability, "wait_durable", lambda paths, *, timeout_s: False)
    (tmp_path / "x").write_bytes(bytes(4 << 20))
    farewell.uploaded(1 << 20, 10.0)
    farewell.upload(7, [str(tmp_path / "x")])
    assert "4 MiB, and at 0.1 MiB/s its upload takes longer than the 30.0 s that are left" in caplog.text
