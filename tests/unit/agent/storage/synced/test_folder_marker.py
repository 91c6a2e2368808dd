from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from perdure.agent.storage.synced.folder_marker import MARK_FILE, FolderMarker, Phase


@pytest.fixture(params=["attribute", "file"])
def marker(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderMarker:
    def refuse(*_args: object) -> None:
        raise OSError(errno.ENOTSUP, "no extended attributes")

    if request.param == "file":
        monkeypatch.setattr(os, "setxattr", refuse)
    (tmp_path / "home").mkdir()
    (tmp_path / "top").mkdir()
    return FolderMarker(tmp_path / "home/synced")


def test_folder__is_claimed_until_another_takes_its_place(marker: FolderMarker, tmp_path: Path) -> None:
    top = tmp_path / "top"
    assert not marker.is_claimed(str(top))
    marker.claim(str(top))
    assert marker.is_claimed(str(top))
    assert FolderMarker(tmp_path / "home/synced").is_claimed(str(top)), "for the next agent, too"
    (top / MARK_FILE).unlink(missing_ok=True)
    top.rmdir()
    assert not marker.is_claimed(str(top))
    top.mkdir()  # often with the same inode
    assert not marker.is_claimed(str(top))


def test_folder_that_cannot_be_read__is_an_error(
    marker: FolderMarker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object) -> bytes:
        raise OSError(errno.EIO, "input/output error")

    marker.claim(str(tmp_path / "top"))
    monkeypatch.setattr(os, "getxattr", fail)
    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(OSError, match="input/output error"):
        marker.is_claimed(str(tmp_path / "top"))


@pytest.mark.parametrize(("text", "phase"), [("copying", Phase.COPYING), ('{"pha', Phase.NEW), ("ready", Phase.READY)])
def test_marker__of_an_earlier_agent_is_no_claim(tmp_path: Path, text: str, phase: Phase) -> None:
    (tmp_path / "synced").write_text(text)
    marker = FolderMarker(tmp_path / "synced")
    assert marker.phase() is phase
    assert not marker.is_claimed(str(tmp_path))
