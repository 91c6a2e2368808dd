"""A file that Lightning writes again and again, such as `last.ckpt`: interrupted at any point, it can be loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.checkpoint import steps
from perdure.checkpoint.load import directory_cache

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")

from perdure.checkpoint.adapters import lightning as adapter  # noqa: E402 - it needs Lightning


class Killed(BaseException):
    pass


def checkpoint(step: int) -> dict[str, Any]:
    return {"global_step": step, "state_dict": {"w": torch.full((1000,), float(step))}}


def resumed(directory: Path) -> int:
    """The step of what a new process loads."""
    directory_cache._caches.clear()
    path = adapter.last_checkpoint(directory)
    assert path is not None
    return int(adapter.PerdureCheckpointIO().load_checkpoint(path)["global_step"])


def killed_before(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise Killed

    monkeypatch.setattr(owner, name, die)


def killed_after(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    call = getattr(owner, name)

    def die(*arguments: Any, **options: Any) -> None:
        call(*arguments, **options)
        raise Killed

    monkeypatch.setattr(owner, name, die)


@pytest.mark.parametrize(
    ("kill", "owner", "name", "expected"),
    [
        (killed_before, adapter.TorchCheckpointIO, "save_checkpoint", 20),
        (killed_after, adapter.TorchCheckpointIO, "save_checkpoint", 20),
        (killed_before, os, "replace", 20),
        (killed_before, adapter.manifest, "sync_directory", 20),
        (killed_before, adapter.finish_step, "finish", 30),
        (killed_before, adapter, "_uncommit", 30),
    ],
)
def test_last_ckpt__killed_at_any_point_is_the_old_or_the_new_one(
    kill: Callable[..., None], owner: object, name: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A best model of long ago lies beside it: to go on from that would lose all steps since."""
    plugin = adapter.PerdureCheckpointIO()
    plugin.save_checkpoint(checkpoint(3), tmp_path / "best-step=3.ckpt")
    for step in (10, 20):
        plugin.save_checkpoint(checkpoint(step), tmp_path / "last.ckpt")
    assert resumed(tmp_path) == 20
    with monkeypatch.context() as patched:
        kill(patched, owner, name)
        with pytest.raises(Killed):
            plugin.save_checkpoint(checkpoint(30), tmp_path / "last.ckpt")
    assert resumed(tmp_path) == expected
    plugin.save_checkpoint(checkpoint(40), tmp_path / "last.ckpt")
    assert resumed(tmp_path) == 40
    assert [one.step for one in steps(tmp_path)] == [40, 3]
    assert not list(tmp_path.glob(".perdure/*.damaged"))
