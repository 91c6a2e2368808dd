"""The save at a notice."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from perdure.checkpoint.durability import status
from perdure.checkpoint.save.final_save import MARGIN_S, FinalSave


@pytest.fixture
def final_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FinalSave:
    """At time 1000, with a notice for 1000 + 30 + the margin."""
    monkeypatch.setenv("PERDURE_RUN_DIR", str(tmp_path))
    (tmp_path / "notice.json").write_text(json.dumps({"deadline": 1030 + MARGIN_S}))
    return FinalSave(now=lambda: 1000.0)


def test_can_commit__false_if_a_save_takes_too_long(final_save: FinalSave, caplog: pytest.LogCaptureFixture) -> None:
    assert final_save.can_commit()  # nothing measured yet: try
    final_save.commit_s = 29
    assert final_save.can_commit()
    final_save.commit_s = 31
    assert not final_save.can_commit()
    assert not final_save.can_commit()
    assert caplog.text.count("a save takes 31.0 s, and the machine is taken in 30.0 s") == 1


def test_can_commit__true_without_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_RUN_DIR", raising=False)
    assert FinalSave(commit_s=1e9).can_commit()


@pytest.mark.parametrize(
    ("durable", "says"),
    [
        (True, "step 7 is in the bucket, 30.0 s to spare"),
        (False, "did not reach the bucket in time; an older one will be loaded"),
        (None, "it is not known whether it has reached the bucket"),
    ],
)
def test_upload__logs_the_result(
    final_save: FinalSave,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    durable: bool | None,
    says: str,
) -> None:
    waited = []
    monkeypatch.setattr(
        status, "wait_durable", lambda paths, *, timeout_s: waited.append((paths, timeout_s)) or durable
    )
    with caplog.at_level(logging.INFO):
        assert final_save.upload(7, [str(tmp_path / "x")]) is durable
    assert waited == [([str(tmp_path / "x")], 30.0)]
    assert says in caplog.text


def test_upload__warns_if_the_mount_is_too_slow(
    final_save: FinalSave, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(status, "wait_durable", lambda paths, *, timeout_s: False)
    (tmp_path / "x").write_bytes(bytes(4 << 20))
    final_save.record_upload(1 << 20, 10.0)
    final_save.upload(7, [str(tmp_path / "x")])
    assert "4 MiB, and at 0.1 MiB/s its upload takes longer than the remaining 30.0 s" in caplog.text
