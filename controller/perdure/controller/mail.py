"""Turns for jobs that are in another daemon's hands: written down as letters, read by whoever owns the job by then.

What was written down is safe, and only then is whoever said it told so. A letter's turn is recorded once: the
transaction that records it deletes the letter.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection, Engine

from perdure.controller.clock import Clock
from perdure.controller.store import letters
from perdure.controller.store.database import UNAVAILABLE
from perdure.controller.store.letters import Letter
from perdure.controller.turns import Checkpoint, Turn, resolve
from perdure.recovery import events
from perdure.recovery.actions import Note
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase

log = structlog.get_logger(__name__)

LOOK_S = 1.0
_RETRY_S = 0.5
_FEW = 50
_MOST_AT_ONCE = 256
_MOST_IN_HAND = 1000
_OVERTAKEN = 2 * _MOST_AT_ONCE

# What nodes and users say. What this daemon's own timers and workers say is for its own jobs alone: the next owner has
# timers and workers of its own. Silence is no letter either: it is seen by who holds a connection, and who does not.
_LETTERS: Mapping[str, type[Any]] = {
    kind.__name__: kind for kind in (events.CancelRequested, events.NodeReported, events.NoticeGiven, events.Saved)
}


def written(turn: Turn) -> dict[str, Any] | None:
    """The turn as plain JSON; None for one that concerns nobody else."""
    kind = type(turn.event).__name__
    body: dict[str, Any] = {}
    if kind in _LETTERS:
        body["event"] = {"kind": kind, **asdict(turn.event)}
    if turn.checkpoint is not None:
        body["checkpoint"] = asdict(turn.checkpoint)
    if turn.notes:
        body["notes"] = [asdict(note) for note in turn.notes]
    return body if body and turn.performed is None else None


def read(letter: Letter) -> Turn:
    """The turn that `letter` stands for."""
    body = letter.body
    checkpoint = body.get("checkpoint")
    return Turn(
        letter.job_id,
        _event(body["event"]) if "event" in body else events.Tick(),
        checkpoint=_checkpoint(checkpoint) if checkpoint else None,
        notes=tuple(_note(note) for note in body.get("notes", ())),
        letter=letter.id,
    )


def leave(conn: Connection, job_ids: Sequence[int], event: events.Event, now: float) -> None:
    """Say the same of jobs, whoever owns them: safe once the transaction is, and read soon, of a few at once."""
    body = written(Turn(0, event))
    assert body is not None, f"{event} is no letter"
    if len(job_ids) > _FEW:
        letters.put_all(conn, job_ids, body, now)
    else:
        letters.put_each(conn, [(id, body) for id in job_ids], now)


class Outgoing:
    """Writes letters in the order in which they were given, those that wait together. Tries until the database has
    them."""

    def __init__(self, database: Engine, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="letters")
        self._waiting: deque[tuple[Turn, dict[str, Any]]] = deque()
        self._ended = threading.Event()

    def forward(self, turn: Turn) -> None:
        """Hand `turn` to the owner of its job. From any thread; `turn.done` is answered when it is safe."""
        body = written(turn) if turn.letter is None else None
        if body is None:
            resolve(turn)
        elif not self._ended.is_set():
            self._waiting.append((turn, body))
            self._thread.submit(self._write)

    def close(self) -> None:
        self._ended.set()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _write(self) -> None:
        """Write what waits. Of as many calls as there are letters, the first may find them all."""
        some = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST_AT_ONCE))]
        while some and not self._ended.is_set():
            try:
                with self._database.begin() as conn:
                    letters.put_each(conn, [(turn.job_id, body) for turn, body in some], self._clock.now())
            except UNAVAILABLE as error:
                log.warning("database.refused", letters=len(some), error=str(error))
                self._ended.wait(_RETRY_S)
            else:
                for turn, _ in some:
                    resolve(turn)
                return


class Incoming:
    """Reads the letters for this daemon's jobs, each into one turn at a time, and only so many at a time. `when_read`:
    called when those that there was room for are nearly all recorded, and there may be more.

    One that a newer version wrote may say what this one can not read. It is left for a daemon that can, and holds up no
    other. From any thread.
    """

    def __init__(
        self,
        database: Engine,
        owner: str,
        post: Callable[[Turn], object],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._owner = owner
        self._post = post
        self._monotonic = monotonic
        self._all_read_at = float("-inf")
        self._newest = 0
        self._is_full = False
        self._reading: set[int] = set()
        self._unreadable: set[int] = set()
        self._one_at_a_time = threading.Lock()
        self.when_read: Callable[[], object] = lambda: None

    def look(self) -> int:
        """Post a turn for every letter that has none yet, unless somebody else is just doing so. Returns how many.

        Raises what the database raises.
        """
        if not self._one_at_a_time.acquire(blocking=False):
            return 0
        try:
            return self._look()
        finally:
            self._one_at_a_time.release()

    def _look(self) -> int:
        room = _MOST_IN_HAND - len(self._reading)
        self._is_full = room < _MOST_AT_ONCE
        if self._is_full:
            return 0
        # Ids are given before they are committed, and jobs change hands: now and then all that there are are looked at.
        now = self._monotonic()
        is_for_all = now - self._all_read_at >= LOOK_S
        after = 0 if is_for_all else self._newest - _OVERTAKEN
        in_hand = {id for id in list(self._reading) if id > after}
        with self._database.connect() as conn:
            waiting = letters.waiting(conn, self._owner, room, but=self._unreadable | in_hand, after=after)
        self._all_read_at = now if is_for_all else self._all_read_at
        self._is_full = len(waiting) >= room
        posted = 0
        for letter in waiting:
            if letter.id in self._reading:
                continue
            try:
                turn, done = read(letter).awaited()
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                self._unreadable.add(letter.id)
                log.warning("letter.unreadable", letter=letter.id, job=letter.job_id, error=repr(error))
                continue
            self._reading.add(letter.id)
            self._newest = max(self._newest, letter.id)
            done.add_done_callback(partial(self._recorded, letter.id))
            self._post(turn)
            posted += 1
        return posted

    def _recorded(self, id: int, _: Future[None]) -> None:
        self._reading.discard(id)
        if self._is_full and len(self._reading) < _MOST_AT_ONCE:
            self._is_full = False
            self.when_read()


def _event(data: Mapping[str, Any]) -> events.Event:
    values = {name: value for name, value in data.items() if name != "kind"}
    if "phase" in values:
        values["phase"] = NodePhase(values["phase"])
    event: events.Event = _LETTERS[data["kind"]](**values)
    return event


def _note(data: Mapping[str, Any]) -> Note:
    return Note(**{**data, "reason": Reason(data["reason"]) if data["reason"] else None})


def _checkpoint(data: Mapping[str, Any]) -> Checkpoint:
    job, task, generation = data["key"]
    return Checkpoint((job, task, generation), data["rank"], data["seq"], _note(data["note"]))
