"""The task's files and mounts on this node: what the supervisor uses of `storage`."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from perdure.agent.link.client import ControllerRejected, TokenRevoked, Unreachable
from perdure.agent.node_spec import NodeSpec
from perdure.agent.paths import NodePaths
from perdure.agent.state_file import write_json
from perdure.agent.storage.checkpoint_journal import CheckpointJournal
from perdure.agent.storage.durability_watcher import DurabilityWatcher
from perdure.agent.storage.fetch import FetchCancelled, Fetcher, FetchFailed
from perdure.agent.storage.mounts import FlushError, MountError, Mounts
from perdure.agent.storage.token_server import TokenUnavailable
from perdure.agent.workload.environment import WORKDIR

CHECK_INTERVAL_S = 1.0
UNMOUNT_LOCK_TIMEOUT_S = 1.0
LAST_POLL_TIMEOUT_S, URGENT_POLL_TIMEOUT_S = 30.0, 0.5  # a mount that hangs must not hold up the end of the node
STOP_COPIES_S, URGENT_STOP_COPIES_S = 30.0, 0.5  # for the end of an upload of a file that is in use
STORE_TIMEOUT_S, STORE_RETRY_S = 900.0, 5.0  # a store that does not answer is retried: the job may be far along


class StorageFailed(Exception):
    """Fetching files, mounting, or flushing failed."""


class HomeNotKept(Exception):
    """The home could not be saved or restored; the message says why."""


class KeptHome(Protocol):
    """Saves and restores the home of a cluster's node (`lifecycle.saved_home`). Each raises HomeNotKept."""

    def record_baseline(self) -> None: ...
    def restore(self, mount: Mapping[str, Any], /) -> int: ...
    def save(self, mount: Mapping[str, Any], /) -> int: ...


class NodeStorage:
    """Fetches the files; mounts, watches and flushes the buckets.

    `last_snapshot`: the mounts for the report, as of the last check, since a check may block.
    """

    def __init__(
        self,
        spec: NodeSpec,
        fetcher: Fetcher,
        paths: NodePaths,
        *,
        copies_exist: bool,
        home: Callable[[Callable[[], Path | None]], KeptHome] | None = None,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """`copies_exist`: an earlier agent has made the COPY mounts, which may have been written to since. So it is on
        the kept disk of a cluster's node.

        `home`: makes what keeps the home of a cluster's node, from a function that returns rclone. `log`: the agent's
        own log.
        """
        self._files_exist = home is not None and paths.files_in_place.exists()
        copies_exist = copies_exist or self._files_exist
        specs = [_with_absolute_path(mount) for mount in spec.mounts if not (copies_exist and mount["mode"] == "COPY")]
        self.last_snapshot: list[dict[str, Any]] = []
        self._spec = spec
        self._fetcher = fetcher
        self._paths = paths
        self._log = log
        self._home = None if home is None else home(self._rclone)
        self._mounts = Mounts(
            specs,
            state_dir=paths.root,
            rclone=None,
            log=paths.append_to_job_log,
            renew=self._renew_credentials,
            is_shared=spec.num_nodes > 1,
        )
        self._durability = DurabilityWatcher(CheckpointJournal(paths.checkpoints), self._mounts.bucket_mounts, log=log)
        self._mounts_lock = threading.Lock()
        self._logged_as_lost: set[str] = set()
        self._is_mounted = False
        self._checks_stopped = threading.Event()
        self._cancelled = threading.Event()

    def prepare(self, *, with_files: bool) -> None:
        """Fetch the files, mount the buckets. Repeatable. Raises StorageFailed, FetchCancelled, TokenRevoked."""
        try:
            if with_files and not self._files_exist:
                self._fetcher.fetch_files(self._spec)
            self._retry(self._mount)
            if with_files and self._home is not None:
                self._restore_home(self._home)
                with suppress(OSError):  # the disk is full: another start of this machine fetches them again
                    self._paths.files_in_place.touch()
        except (FetchFailed, MountError, HomeNotKept) as error:
            raise StorageFailed(str(error)) from None

    def refresh(self) -> None:
        """Before `run` begins, and after the attempt before has ended: have folders what that has saved last.

        Mounts show it by themselves. Raises StorageFailed, FetchCancelled.
        """
        try:
            self._retry(self._mounts.refresh_folders)
        except MountError as error:
            raise StorageFailed(str(error)) from None

    def cancel_prepare(self) -> None:
        """Make `prepare` raise FetchCancelled."""
        self._cancelled.set()
        self._fetcher.cancel()

    def watch(self, on_change: Callable[[list[dict[str, Any]], list[str]], None]) -> None:
        """Watch mounts and uploads until `flush`. `on_change(mounts, lost paths)` is called when lost paths change."""
        self._durability.start()  # without mounts, too: it finds those that an earlier agent or the user made
        self._mounts.start_periodic_flushes(self._log)
        if self._spec.mounts:
            threading.Thread(target=self._check_mounts, args=(on_change,), name="mounts", daemon=True).start()

    def checkpoints_changed(self) -> None:
        """The checkpoint journal has grown. From any thread."""
        self._durability.wake()

    def find_lost_mounts(self) -> list[str]:
        """The paths whose bucket is lost, tested by an access to each. Blocks where a mount hangs. From any thread."""
        dead = self._mounts.dead_paths()
        with self._mounts_lock:
            lost = sorted({*dead, *self._mounts.lost_paths()})
            self.last_snapshot = self._mounts.snapshot()
            self._log_lost(lost)
        return lost

    def new_mounts(self) -> list[str]:
        """The paths that `prepare` mounted, without the working mounts of an earlier agent."""
        return list(self._mounts.new_paths)

    def flush(self, deadline: float | None) -> None:
        """Upload what was written, by `deadline` (time of `clock`). Raises StorageFailed."""
        self._checks_stopped.set()
        self._mounts.stop_periodic_flushes(STOP_COPIES_S if deadline is None else URGENT_STOP_COPIES_S)
        with self._mounts_lock:
            try:
                if not self._is_mounted:
                    self._mount()  # a restarted agent has not adopted the mounts yet
                self._mounts.flush(deadline)
            except (FlushError, MountError) as error:
                raise StorageFailed(str(error)) from None
            finally:
                poll_timeout_s = LAST_POLL_TIMEOUT_S if deadline is None else URGENT_POLL_TIMEOUT_S
                if not self._durability.poll_within(poll_timeout_s):
                    self._log("the last look at the uploads did not end in time: a mount hangs")
                self._durability.stop()
                self.last_snapshot = self._mounts.snapshot()
        if self._home is not None:
            self._save_home(self._home)

    def unmount(self) -> None:
        """Remove every mount without flushing, also while another operation hangs."""
        self._checks_stopped.set()
        self._durability.stop()
        self.cancel_prepare()
        acquired = self._mounts_lock.acquire(timeout=UNMOUNT_LOCK_TIMEOUT_S)
        try:
            self._mounts.unmount_all()
        finally:
            if acquired:
                self._mounts_lock.release()

    def _restore_home(self, home: KeptHome) -> None:
        home.record_baseline()
        if self._spec.home is not None and (count := home.restore(self._spec.home)):
            self._paths.append_to_job_log(f"restored {count} files and folders of the home")

    def _save_home(self, home: KeptHome) -> None:
        """Save what was changed in the home, unless the cluster needs it no more. Raises StorageFailed."""
        try:
            target = self._fetcher.fetch_home()
        except (TokenRevoked, ControllerRejected, Unreachable, ValueError, KeyError) as error:
            self._log(f"where the home is kept may have changed: {error}")
            target = self._spec.home
        if target is None:
            return
        try:
            self._paths.append_to_job_log(f"saved {home.save(target)} files and folders of the home")
        except HomeNotKept as error:
            raise StorageFailed(str(error)) from None

    def rescue_home(self, target: Mapping[str, Any]) -> None:
        """Save the home after the node has ended: its disk will not be kept. Raises HomeNotKept.

        The end of the node has cancelled what it fetched, and a node without mounts has no rclone yet.
        """
        if self._home is None:
            raise HomeNotKept("this node keeps no home")
        self._fetcher = self._fetcher.renewed()
        limit = threading.Timer(STORE_TIMEOUT_S, self._fetcher.cancel)
        limit.daemon = True
        limit.start()
        try:
            count = self._home.save(target)
        except (FetchFailed, FetchCancelled, TokenRevoked) as error:
            why = str(error) or "the controller did not answer"
            raise HomeNotKept(f"there is no rclone on this node: {why}") from error
        finally:
            limit.cancel()
        with suppress(OSError):  # it is saved, whether the disk is full or not
            self._paths.append_to_job_log(f"saved {count} files and folders of the home")

    def _retry(self, operation: Callable[[], None]) -> None:
        """Do it on the mounts, again while the store does not answer. Raises MountError, FetchCancelled, or as fetching
        does."""
        deadline, logged = time.monotonic() + STORE_TIMEOUT_S, False
        while not self._cancelled.is_set():
            try:
                with self._mounts_lock:
                    return operation()
            except MountError as error:
                if not error.is_transient or time.monotonic() >= deadline:
                    raise
                if not logged:
                    self._paths.append_to_job_log(f"{error}; trying again")
                logged = True
                self._cancelled.wait(STORE_RETRY_S)
        raise FetchCancelled

    def _renew_credentials(self, path: str) -> Mapping[str, Any]:
        """rclone's options for the mount at `path`, with a new token. Raises TokenUnavailable."""
        try:
            matches = [
                mount for mount in map(_with_absolute_path, self._fetcher.fetch_mounts()) if mount["path"] == path
            ]
        except (TokenRevoked, ControllerRejected, Unreachable, ValueError, KeyError) as error:
            raise TokenUnavailable(str(error)) from None
        if not matches:
            raise TokenUnavailable(f"the controller has no mount at {path}")
        options: Mapping[str, Any] = matches[0]["rclone"]
        return options

    def _mount(self) -> None:
        if self._mounts.needs_rclone and self._mounts.rclone is None:
            self._mounts.rclone = self._rclone()
        self._mounts.mount_all()
        self._is_mounted = True
        self._durability.mounts_changed()
        self.last_snapshot = self._mounts.snapshot()
        write_json(self._paths.run_dir / "mounts.json", self._mounts.describe())

    def _rclone(self) -> Path | None:
        """The controller's rclone, or else the image's."""
        digest = self._spec.artifacts.get("rclone")
        if digest is not None:
            return self._fetcher.fetch_tool(digest)
        installed = shutil.which("rclone")
        return Path(installed) if installed else None

    def _check_mounts(self, on_change: Callable[[list[dict[str, Any]], list[str]], None]) -> None:
        known_lost: list[str] = []
        while not self._checks_stopped.wait(CHECK_INTERVAL_S):
            with self._mounts_lock:
                lost = self._mounts.lost_paths()
                self.last_snapshot = self._mounts.snapshot()
                self._log_lost(lost)
            if lost != known_lost:
                on_change(self.last_snapshot, lost)
            known_lost = lost

    def _log_lost(self, lost: list[str]) -> None:
        for path in set(lost) - self._logged_as_lost:
            self._paths.append_to_job_log(f"the mount at {path} is lost: what is written there is not saved")
        self._logged_as_lost = set(lost)


def _with_absolute_path(mount: dict[str, Any]) -> dict[str, Any]:
    """The mount with a relative path put below the workdir, as for files."""
    path = str(mount["path"])
    return mount if path.startswith(("/", "~")) else {**mount, "path": f"~/{WORKDIR}/{path.removeprefix('./')}"}
