"""A mount that shows less than there is until it is asked again, or until a moment has passed: a directory of the
test's own, and a stand-in for rclone's remote control."""

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

from perdure.checkpoint import Checkpointer, NoUsableCheckpoint, mount_table, second_look
from perdure.checkpoint.folders import Folders


@dataclass
class FakeMount:
    """What `hide` did is undone when the mount is asked to list anew (`by_asking`), or when somebody waits."""

    path: Path
    by_asking: bool = True
    asked: list[dict[str, Any]] = field(default_factory=list)
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
        self.asked.append(params)
        if self.by_asking:
            self._restore()

    def wait(self, _seconds: float) -> None:
        self.waited += 1
        if not self.by_asking:
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
    monkeypatch.setattr(mount_table, "source_at", lambda _path: "store:bucket")
    monkeypatch.setattr(second_look, "_SETTLES_S", 0.2)
    monkeypatch.setattr(second_look.time, "sleep", made.wait)
    with socketserver.ThreadingUnixStreamServer(socket, Answering) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        server.shutdown()
        thread.join()


@pytest.fixture
def saved(mount: FakeMount, restart: Callable[[], None]) -> Path:
    """Steps 1 and 2 of a Checkpointer, by a process that is gone."""
    directory = mount.path / "run"
    with Checkpointer(directory) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"step": step})
    mount.asked.clear()
    restart()
    return directory


def file_of(directory: Path, step: int) -> Path:
    (found,) = directory.glob(f"checkpoint-{step:012d}-*.safetensors")
    return found


def manifest_of(directory: Path, step: int) -> Path:
    (found,) = (directory / ".perdure").glob(f"checkpoint-{step:012d}-*.json")
    return found


def marked(directory: Path) -> list[str]:
    return [path.name for path in directory.rglob("*.damaged")]


def loaded(directory: Path) -> tuple[int, list[int]]:
    with Checkpointer(directory) as checkpointer:
        state = checkpointer.load()
        assert checkpointer.last_result is not None
        return state["step"], [step for step, _ in checkpointer.last_result.skipped]


def only_by_damage(mount: FakeMount, monkeypatch: pytest.MonkeyPatch) -> None:
    """The question that begins every load changes nothing; what is asked at the sight of damage does."""
    real = second_look.take
    mount.by_asking = False

    def take(first: Any) -> Any:
        mount.by_asking = True
        return real(first)

    monkeypatch.setattr(second_look, "take", take)


@pytest.mark.parametrize(("which", "as_empty"), [(file_of, True), (file_of, False), (manifest_of, True)])
def test_what_was_shown_short_is_loaded(
    mount: FakeMount, saved: Path, which: Callable[..., Path], as_empty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_by_damage(mount, monkeypatch)
    mount.hide(which(saved, 2), as_empty=as_empty)
    assert loaded(saved) == (2, [])
    assert mount.asked[-1] == {"dir0": "run", "dir1": "run/.perdure"}
    assert marked(saved) == []


def test_a_file_that_comes_a_moment_later_is_waited_for(mount: FakeMount, saved: Path) -> None:
    mount.by_asking = False
    mount.hide(file_of(saved, 2), as_empty=True)
    assert loaded(saved) == (2, [])
    assert mount.waited == 1
    assert marked(saved) == []


def test_a_load_begins_with_a_new_listing(mount: FakeMount, saved: Path) -> None:
    mount.hide(manifest_of(saved, 2), as_empty=False)
    assert loaded(saved) == (2, [])
    mount.hide(saved / ".perdure", as_empty=False)
    assert loaded(saved) == (2, []), "an old listing is no first run"
    assert mount.waited == 0


def test_what_stays_damaged_is_called_so(mount: FakeMount, saved: Path) -> None:
    os.truncate(file_of(saved, 2), 10)
    assert loaded(saved) == (1, [2])
    assert len(marked(saved)) == 1
    waited, mount.waited = mount.waited, 0
    assert waited > 0
    assert loaded(saved) == (1, [2])
    assert mount.waited == 0, "a mark stands: nobody waits a second time"
    os.truncate(file_of(saved, 1), 10)
    with pytest.raises(NoUsableCheckpoint):
        loaded(saved)


def test_content_that_differs_is_read_again(mount: FakeMount, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_by_damage(mount, monkeypatch)
    path = file_of(saved, 2)
    whole = path.read_bytes()
    mount.hide(path, as_empty=False)
    path.write_bytes(bytes(len(whole)))
    assert loaded(saved) == (2, [])
    assert mount.waited == 0


def test_a_step_that_is_removed_meanwhile_is_not_marked(
    mount: FakeMount, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove_all_of_2(_params: object) -> None:
        for path in (file_of(saved, 2), manifest_of(saved, 2)):
            path.unlink()

    os.truncate(file_of(saved, 2), 0)
    monkeypatch.setattr(second_look, "refresh", lambda root, folders=None: folders and remove_all_of_2(root))
    monkeypatch.setattr(second_look, "_SETTLES_S", 0.0)
    assert loaded(saved) == (1, [2])
    assert marked(saved) == []


def test_decorated_functions_and_folders_look_twice_too(
    mount: FakeMount,
    saver: Callable[..., Any],
    loader: Callable[..., Any],
    restart: Callable[[], None],
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
    mount.by_asking = False
    mount.hide(Path(folders.path_of(2), "inner", "weights"), as_empty=False)
    newest = folders.newest()
    assert newest is not None
    assert (newest.step, newest.skipped) == (2, ())
    assert "folders/checkpoint-2/inner" in mount.asked[-1].values()
    assert marked(mount.path) == []


def test_off_the_mounts_nobody_waits(
    tmp_path: Path, saver: Callable[..., Any], loader: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    save, load = saver(tmp_path), loader(tmp_path)
    for step in (1, 2):
        save(step, b"%d" % step)
    (tmp_path / "model_2.pt").write_bytes(b"")
    monkeypatch.setattr(second_look.time, "sleep", lambda _s: pytest.fail("waited"))
    assert load() == b"1"
