"""Watches what other daemons on the same PostgreSQL write: woken by its notifications, and by itself every second."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

import psycopg
import structlog

from perdure.controller.mail import LOOK_S
from perdure.controller.store import wake
from perdure.controller.store.database import UNAVAILABLE, psycopg_url
from perdure.controller.store.wake import Topic

log = structlog.get_logger(__name__)

_ROUND_S = 2.0
_PAUSES = 20  # … and so many times what the last one took: with thousands of nodes it is work
_GATHER_S = 0.05  # what others say comes in crowds; the longer a look takes, the larger the next
_LONGEST_ROUND_S = 10.0  # a look may have taken long because this process stood still
_LISTEN_S = 1.0
_RETRY_S = 1.0
_NAME = "perdure-listen"


class Watch:
    """Two threads: one looks, one listens and has the other look at once.

    `letters`: called at every look. `some`: when others say that these jobs have changed. `round`: over all of them, at
    least every two seconds, unless that takes long: what was not heard is found so. `is_known`: whether a process of
    the server speaks for this daemon itself, which knows of its own lines of log.
    """

    def __init__(
        self,
        letters: Callable[[], object],
        some: Callable[[Collection[int]], object],
        round: Callable[[], object],
        monotonic: Callable[[], float] = time.monotonic,
        is_known: Callable[[int], bool] = lambda _process_id: False,
    ) -> None:
        self._is_known = is_known
        self._letters = letters
        self._some = some
        self._monotonic = monotonic
        self._round = round
        self._ended = threading.Event()
        self._poked = threading.Event()
        self._is_round_due = True
        self._changed: deque[int] = deque()
        self._threads: list[threading.Thread] = []

    def start(self, url: str, told: Callable[[Topic, Sequence[int]], None]) -> None:
        self._threads = [
            threading.Thread(target=self._look, name="look", daemon=True),
            threading.Thread(target=self._listen, args=(psycopg_url(url), told), name="listen", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def poke(self, jobs: Collection[int] = (), *, round: bool = False) -> None:
        """Look now, at `jobs` as well. From any thread."""
        self._is_round_due = self._is_round_due or round
        self._changed.extend(jobs)
        self._poked.set()

    def stop(self) -> None:
        self._ended.set()
        self._poked.set()
        for thread in self._threads:
            thread.join()

    def _look(self) -> None:
        round_at = 0.0
        while not self._ended.is_set():
            self._poked.clear()
            changed = {self._changed.popleft() for _ in range(len(self._changed))}
            looked_at = self._monotonic()
            try:
                self._letters()
                began_at = self._monotonic()
                if self._is_round_due or began_at >= round_at:
                    self._is_round_due = False
                    self._round()
                    ended_at = self._monotonic()
                    round_at = ended_at + min(max(_ROUND_S, _PAUSES * (ended_at - began_at)), _LONGEST_ROUND_S)
                elif changed:
                    self._some(changed)
            except UNAVAILABLE as error:
                log.warning("database.refused", error=str(error))
                self._ended.wait(_RETRY_S)
            except Exception:
                log.exception("watch.failed")  # a bug of ours; the next look may do better
                self._ended.wait(_RETRY_S)
            took_s = self._monotonic() - looked_at
            if self._poked.wait(LOOK_S):
                self._ended.wait(min(max(_GATHER_S, 2 * took_s), LOOK_S))

    def _listen(self, url: str, told: Callable[[Topic, Sequence[int]], None]) -> None:
        while not self._ended.is_set():
            try:
                with psycopg.connect(url, autocommit=True, connect_timeout=5, application_name=_NAME) as conn:
                    conn.execute(f"LISTEN {wake.CHANNEL}")
                    self.poke(round=True)  # what was said before is not repeated
                    self._hear(conn, told)
            except psycopg.Error as error:
                log.warning("listen.broken", error=str(error))
                self._ended.wait(_RETRY_S)

    def _hear(self, conn: psycopg.Connection, told: Callable[[Topic, Sequence[int]], None]) -> None:
        while not self._ended.is_set():
            for notification in conn.notifies(timeout=_LISTEN_S, stop_after=100):
                said = wake.heard(notification.payload)
                if said is not None and not (said[0] is Topic.LOG and self._is_known(notification.pid)):
                    told(*said)
