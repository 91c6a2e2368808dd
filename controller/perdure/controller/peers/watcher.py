"""Watches for writes of other daemons on the same PostgreSQL: by LISTEN/NOTIFY (`pg_notify`), and by polling."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence

import psycopg
import structlog

from perdure.controller.peers.peer_messages import POLL_INTERVAL_S
from perdure.controller.peers.wake_signal import WakeSignal
from perdure.controller.store.engine import pg_notify
from perdure.controller.store.engine.database import UNAVAILABLE, psycopg_url
from perdure.controller.store.engine.database_url import without_passwords
from perdure.controller.store.engine.pg_notify import Topic

log = structlog.get_logger(__name__)

_FULL_SCAN_INTERVAL_S = 2.0
_FULL_SCAN_IDLE_FACTOR = 20  # the interval is at least this many times the duration of the last full scan
_MAX_FULL_SCAN_INTERVAL_S = 10.0  # a scan may have taken long only because this process was suspended
_LINGER_S = 0.05  # notifications come in bursts: the longer a poll takes, the more of them the next one handles
_LISTEN_S = 1.0
_RETRY_S = 1.0
_NAME = "perdure-listen"


class PeerWatcher:
    """Two threads: one polls, and the other listens for notifications and wakes the first.

    `signal` wakes the first. `read_messages`: called at every poll. `scan`: called with the jobs that other daemons
    have changed. `full_scan`: called for all jobs, by default every two seconds, since notifications may be lost; less
    often if it takes long. `is_own_process`: whether the server process with this id serves this daemon,
    which ignores its own notifications about logs.
    """

    def __init__(
        self,
        signal: WakeSignal,
        read_messages: Callable[[], object],
        scan: Callable[[Collection[int]], object],
        full_scan: Callable[[], object],
        monotonic: Callable[[], float] = time.monotonic,
        is_own_process: Callable[[int], bool] = lambda _process_id: False,
    ) -> None:
        self._is_own_process = is_own_process
        self._read_messages = read_messages
        self._scan = scan
        self._monotonic = monotonic
        self._full_scan = full_scan
        self._ended = threading.Event()
        self._signal = signal
        self._threads: list[threading.Thread] = []

    def start(self, url: str, on_notification: Callable[[Topic, Sequence[int]], None]) -> None:
        self._threads = [
            threading.Thread(target=self._poll, name="poll", daemon=True),
            threading.Thread(target=self._listen, args=(psycopg_url(url), on_notification), name="listen", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._signal.wake()
        for thread in self._threads:
            thread.join()

    def _poll(self) -> None:
        full_scan_at = 0.0
        while not self._ended.is_set():
            changed = self._signal.take()
            polled_at = self._monotonic()
            try:
                self._read_messages()
                began_at = self._monotonic()
                if self._signal.is_full_scan_due or began_at >= full_scan_at:
                    self._signal.is_full_scan_due = False
                    self._full_scan()
                    ended_at = self._monotonic()
                    full_scan_at = ended_at + min(
                        max(_FULL_SCAN_INTERVAL_S, _FULL_SCAN_IDLE_FACTOR * (ended_at - began_at)),
                        _MAX_FULL_SCAN_INTERVAL_S,
                    )
                elif changed:
                    self._scan(changed)
            except UNAVAILABLE as error:
                log.warning("database.unavailable", error=str(error))
                self._ended.wait(_RETRY_S)
            except Exception:
                log.exception("peer_watcher.failed")  # a bug: the next poll may succeed
                self._ended.wait(_RETRY_S)
            took_s = self._monotonic() - polled_at
            if self._signal.wait(POLL_INTERVAL_S):
                self._ended.wait(min(max(_LINGER_S, 2 * took_s), POLL_INTERVAL_S))

    def _listen(self, url: str, on_notification: Callable[[Topic, Sequence[int]], None]) -> None:
        while not self._ended.is_set():
            try:
                with psycopg.connect(url, autocommit=True, connect_timeout=5, application_name=_NAME) as conn:
                    conn.execute(f"LISTEN {pg_notify.CHANNEL}")
                    self._signal.wake(full=True)  # notifications from before are lost
                    self._consume(conn, on_notification)
            except psycopg.Error as error:
                log.warning("listen.broken", error=without_passwords(str(error), url))
                self._ended.wait(_RETRY_S)
            except Exception:
                log.exception("listen.failed")  # a bug: notifications from before are made up for by a full scan
                self._ended.wait(_RETRY_S)

    def _consume(self, conn: psycopg.Connection, on_notification: Callable[[Topic, Sequence[int]], None]) -> None:
        while not self._ended.is_set():
            for notification in conn.notifies(timeout=_LISTEN_S, stop_after=100):
                parsed = pg_notify.parse_payload(notification.payload)
                if parsed is not None and not (parsed[0] is Topic.LOG and self._is_own_process(notification.pid)):
                    on_notification(*parsed)
