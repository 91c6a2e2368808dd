"""A mount that omits files until it is refreshed or until some time has passed. It is a directory, with a
stand-in for rclone's remote control."""

from __future__ import annotations

import json
import os
import shutil
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from perdure.checkpoint import Checkpointer, NoUsableCheckpoint
from perdure.checkpoint.durability import mount_table
from perdure.checkpoint.folders import Folders
from perdure.checkpoint.load import mount_refresh, verify
from perdure.checkpoint.load.saved_step import Checkpoint
from support.helpers.module_time import replace_time
from unit.checkpoint.training_program import Loader, Restart, Saver


@dataclass
class FakeMount:
    """`hide` is undone when the mount is refreshed (`on_refresh`), or when the code waits."""

    path: Path
    on_refresh: bool = True
    requests: list[dict[str, Any]] = field(default_factory=list)
    waited: int = 0
    _undo: list[Callable[[], object]] = field(default_factory=list)

    def hide(self, path: Path, *, as_empty: bool) -> None:
        kept = path.with_name(".kept-" + path.name)
        shutil.copytree(path, kept) if path.is_dir() else shutil.copy2(path, kept)
        if as_empty:
            os.truncate(path, 0)
        else:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._undo.append(lambda: os.replace(kept, path))

    def ask(self, params: dict[str, Any]) -> None:
        self.requests.append(params)
        if self.on_refresh:
            self._restore()

    def wait(self, _seconds: float) -> None:
        self.waited += 1
        if not self.on_refresh:
            self._restore()

    def _restore(self) -> None:
        while self._undo:
            self._undo.pop()()


@pytest.fixture
def mount(tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMount]:
    made = FakeMount(tmp_path / "mnt")
    made.path.mkdir()
    socket = str(tmp_path / "rc.sock")

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/vfs/refresh"
            made.ask(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def address_string(self) -> str:  # a unix socket has none
            return "rc"

        def log_message(self, *_: object) -> None: ...

    row = {"path": str(made.path), "mode": "MOUNT_CACHED", "cache_dir": None, "rc_socket": socket}
    (run_dir / "mounts.json").write_text(json.dumps([row]))
    monkeypatch.setattr(mount_table, "source_at", lambda *_: "store:bucket")
    monkeypatch.setattr(verify, "_SETTLE_TIMEOUT_S", 0.2)
    replace_time(monkeypatch, verify, sleep=made.wait)
    with socketserver.ThreadingUnixStreamServer(socket, Answering) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        server.shutdown()
        thread.join()


@pytest.fixture
def saved(mount: FakeMount, restart: Restart) -> Path:
    """Steps 1 and 2 of a Checkpointer, saved by another process."""
    directory = mount.path / "run"
    with Checkpointer(directory) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"step": step})
    mount.requests.clear()
    restart()
    return directory


def file_of(directory: Path, step: int) -> Path:
    (path,) = directory.glob(f"checkpoint-{step:012d}-*.safetensors")
    return path


def manifest_of(directory: Path, step: int) -> Path:
    (path,) = (directory / ".perdure").glob(f"checkpoint-{step:012d}-*.json")
    return path


def marked(directory: Path) -> list[str]:
    return [path.name for path in directory.rglob("*.damaged")]


def loaded(directory: Path) -> tuple[int, list[int]]:
    with Checkpointer(directory) as checkpointer:
        state = checkpointer.load()
        assert checkpointer.last_result is not None
        return state["step"], [step for step, _ in checkpointer.last_result.skipped]


def only_by_damage(mount: FakeMount, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refresh at the beginning of a load changes nothing; the one after damage does."""
    real = verify.recheck
    mount.on_refresh = False

    def take(first: Checkpoint) -> Checkpoint | None:
        mount.on_refresh = True
        return real(first)

    monkeypatch.setattr(verify, "recheck", take)


@pytest.mark.parametrize(("which", "as_empty"), [(file_of, True), (file_of, False), (manifest_of, True)])
def test_recheck__loads_what_the_mount_showed_short(
    mount: FakeMount, saved: Path, which: Callable[..., Path], as_empty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_by_damage(mount, monkeypatch)
    mount.hide(which(saved, 2), as_empty=as_empty)
    assert loaded(saved) == (2, [])
    assert mount.requests[-1] == {"dir0": "run", "dir1": "run/.perdure"}
    assert marked(saved) == []


def test_recheck__waits_for_a_late_file(mount: FakeMount, saved: Path) -> None:
    mount.on_refresh = False
    mount.hide(file_of(saved, 2), as_empty=True)
    assert loaded(saved) == (2, [])
    assert mount.waited == 1
    assert marked(saved) == []


def test_load__begins_with_a_refresh(mount: FakeMount, saved: Path) -> None:
    mount.hide(manifest_of(saved, 2), as_empty=False)
    assert loaded(saved) == (2, [])
    mount.hide(saved / ".perdure", as_empty=False)
    assert loaded(saved) == (2, []), "a stale listing is no first run"
    assert mount.waited == 0


def test_recheck__reports_lasting_damage(mount: FakeMount, saved: Path) -> None:
    os.truncate(file_of(saved, 2), 10)
    assert loaded(saved) == (1, [2])
    assert len(marked(saved)) == 1
    waited, mount.waited = mount.waited, 0
    assert waited > 0
    assert loaded(saved) == (1, [2])
    assert mount.waited == 0, "with a mark there is no second wait"
    os.truncate(file_of(saved, 1), 10)
    with pytest.raises(NoUsableCheckpoint):
        loaded(saved)


def test_recheck__reads_different_content_again(mount: FakeMount, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_by_damage(mount, monkeypatch)
    path = file_of(saved, 2)
    whole = path.read_bytes()
    mount.hide(path, as_empty=False)
    path.write_bytes(bytes(len(whole)))
    assert loaded(saved) == (2, [])
    assert mount.waited == 0


def test_recheck__does_not_mark_a_step_removed_meanwhile(
    mount: FakeMount, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove_all_of_2(_params: object) -> None:
        for path in (file_of(saved, 2), manifest_of(saved, 2)):
            path.unlink()

    os.truncate(file_of(saved, 2), 0)
    monkeypatch.setattr(mount_refresh, "refresh", lambda root, folders=None: folders and remove_all_of_2(root))
    monkeypatch.setattr(verify, "_SETTLE_TIMEOUT_S", 0.0)
    assert loaded(saved) == (1, [2])
    assert marked(saved) == []


def test_recheck__for_decorated_functions_and_folders(
    mount: FakeMount,
    saver: Saver,
    loader: Loader,
    restart: Restart,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = mount.path / "functions"
    directory.mkdir()
    save, load = saver(directory), loader(directory)
    for step in (1, 2):
        save(step, b"%d" % step)
    restart()
    only_by_damage(mount, monkeypatch)
    mount.hide(directory / "model_2.pt", as_empty=True)
    assert load() == b"2"
    assert load.last_result.skipped == ()

    folders = Folders(mount.path / "folders")
    for step in (1, 2):
        with folders.saving(step) as path:
            Path(path, "inner").mkdir()
            Path(path, "inner", "weights").write_text(str(step))
    restart()
    mount.on_refresh = False
    mount.hide(Path(folders.path_of(2), "inner", "weights"), as_empty=False)
    newest = folders.newest()
    assert newest is not None
    assert (newest.step, newest.skipped) == (2, ())
    assert "folders/checkpoint-2/inner" in mount.requests[-1].values()
    assert marked(mount.path) == []


def test_recheck__does_not_wait_on_a_disk(
    tmp_path: Path, saver: Saver, loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, load = saver(tmp_path), loader(tmp_path)
    for step in (1, 2):
        save(step, b"%d" % step)
    (tmp_path / "model_2.pt").write_bytes(b"")
    replace_time(monkeypatch, verify, sleep=lambda _s: pytest.fail("waited"))
    assert load() == b"1"
