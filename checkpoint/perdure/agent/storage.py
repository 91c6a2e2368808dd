"""The task's files and mounts on this node, as the supervisor needs them."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from perdure.agent.checkpoints import note_durable
from perdure.agent.controller import Refused, Unreachable, WrittenOff
from perdure.agent.environment import WORKDIR
from perdure.agent.fetch import Abandoned, Fetcher, FetchFailed
from perdure.agent.mounts import FlushError, MountError, Mounts
from perdure.agent.places import Places
from perdure.agent.spec import NodeSpec
from perdure.agent.state import write_json
from perdure.agent.tokens import NoToken

WATCH_S = 1.0
UNMOUNT_PATIENCE_S = 1.0
STORE_PATIENCE_S, STORE_RETRY_S = 900.0, 5.0  # a store that does not answer is waited for: the job may be far along


class StorageFailed(Exception):
    """Files could not be had, a mount could not be made, or cached writes did not reach the bucket."""


class NodeStorage:
    """`last_seen`: the mounts of the report, as of the last look (a look may block, so none is made for a report)."""

    def __init__(self, spec: NodeSpec, fetcher: Fetcher, places: Places, *, keeps_copies: bool) -> None:
        """`keeps_copies`: COPY mounts were made by an earlier agent, and may have been written to since."""
        specs = [_placed(mount) for mount in spec.mounts if not (keeps_copies and mount["mode"] == "COPY")]
        self.last_seen: list[dict[str, Any]] = []
        self._spec = spec
        self._fetcher = fetcher
        self._places = places
        self._mounts = Mounts(specs, state_dir=places.root, rclone=None, log=places.tell_user, renew=self._renewed)
        self._one_at_a_time = threading.Lock()
        self._is_mounted = False
        self._watch_ended = threading.Event()
        self._abandoned = threading.Event()

    def prepare(self, *, with_files: bool) -> None:
        """Fetch the files, mount the buckets. May be repeated. Raises StorageFailed, Abandoned, WrittenOff."""
        try:
            if with_files:
                self._fetcher.files(self._spec)
            self._mount_patiently()
        except (FetchFailed, MountError) as error:
            raise StorageFailed(str(error)) from None

    def abandon_preparing(self) -> None:
        """Nobody waits for `prepare` any more."""
        self._abandoned.set()
        self._fetcher.abandon()

    def watch(self, changed: Callable[[list[dict[str, Any]], list[str]], None]) -> None:
        """From now until `flush`: call `changed(mounts, lost paths)` whenever other paths are lost than before."""
        if self._spec.mounts:
            threading.Thread(target=self._watch, args=(changed,), name="mounts", daemon=True).start()

    def flush(self, deadline: float | None) -> None:
        """Bring what was written into the buckets by `deadline` (time of `clock`). Raises StorageFailed."""
        self._watch_ended.set()
        with self._one_at_a_time:
            try:
                if not self._is_mounted:
                    self._mount()  # an agent that was started again has not looked at the mounts yet
                self._mounts.flush(deadline)
                note_durable(self._places.checkpoints, [mount["path"] for mount in self._mounts.describe()])
            except (FlushError, MountError) as error:
                raise StorageFailed(str(error)) from None
            finally:
                self.last_seen = self._mounts.snapshot()

    def unmount(self) -> None:
        """Leave no mount behind, and flush nothing: what hangs meanwhile is not waited for."""
        self._watch_ended.set()
        self.abandon_preparing()
        is_free = self._one_at_a_time.acquire(timeout=UNMOUNT_PATIENCE_S)
        try:
            self._mounts.unmount_all()
        finally:
            if is_free:
                self._one_at_a_time.release()

    def _mount_patiently(self) -> None:
        """Raises MountError, Abandoned, or as fetching does."""
        give_up_at, told = time.monotonic() + STORE_PATIENCE_S, False
        while not self._abandoned.is_set():
            try:
                with self._one_at_a_time:
                    return self._mount()
            except MountError as error:
                if not error.may_pass or time.monotonic() >= give_up_at:
                    raise
                if not told:
                    self._places.tell_user(f"{error}; trying again")
                told = True
                self._abandoned.wait(STORE_RETRY_S)
        raise Abandoned

    def _renewed(self, path: str) -> Mapping[str, Any]:
        """rclone's options for the mount at `path`, with a new token. Raises NoToken."""
        try:
            found = [mount for mount in map(_placed, self._fetcher.mounts()) if mount["path"] == path]
        except (WrittenOff, Refused, Unreachable, ValueError, KeyError) as error:
            raise NoToken(str(error)) from None
        if not found:
            raise NoToken(f"the controller knows of no mount at {path}")
        options: Mapping[str, Any] = found[0]["rclone"]
        return options

    def _mount(self) -> None:
        if self._mounts.needs_rclone and self._mounts.rclone is None:
            self._mounts.rclone = self._rclone()
        self._mounts.mount_all()
        self._is_mounted = True
        self.last_seen = self._mounts.snapshot()
        write_json(self._places.run_dir / "mounts.json", self._mounts.describe())

    def _rclone(self) -> Path | None:
        """The controller's, or the image's own."""
        digest = self._spec.artifacts.get("rclone")
        if digest is not None:
            return self._fetcher.tool(digest)
        found = shutil.which("rclone")
        return Path(found) if found else None

    def _watch(self, changed: Callable[[list[dict[str, Any]], list[str]], None]) -> None:
        before: list[str] = []
        while not self._watch_ended.wait(WATCH_S):
            with self._one_at_a_time:
                lost = self._mounts.check()
                self.last_seen = self._mounts.snapshot()
            if lost != before:
                for path in set(lost) - set(before):
                    self._places.tell_user(f"the mount at {path} is lost: what is written there is not saved")
                changed(self.last_seen, lost)
            before = lost


def _placed(mount: dict[str, Any]) -> dict[str, Any]:
    """The mount with a path that needs no context: a relative one is below the workdir, as for files."""
    path = str(mount["path"])
    return mount if path.startswith(("/", "~")) else {**mount, "path": f"~/{WORKDIR}/{path.removeprefix('./')}"}
