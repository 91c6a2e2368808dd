"""Hands intents and look-ups to the threads of their cloud, and brings their answers back.

Used by the reconcile thread alone; only the pools' workers run elsewhere, and they only call `answer`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import structlog

from perdure.controller.acting import Actor, Later, Outcome
from perdure.controller.clouds.base import Fault
from perdure.controller.keyring import AttemptKey
from perdure.controller.lanes import Launch
from perdure.controller.machines import Machines
from perdure.controller.store.database import is_away
from perdure.controller.store.intents import Intent, IntentKind
from perdure.controller.store.jobs import LeaseLost
from perdure.recovery import events
from perdure.recovery.market import Offer
from perdure.recovery.reasons import Reason

log = structlog.get_logger(__name__)

_WORKER_ERROR_RETRY_S = 30.0
_NOT_NOW = Later(0.5, was_tried=False)


@dataclass(frozen=True)
class Performed:
    """A worker's answer on an intent."""

    intent: Intent
    result: Outcome | Later


@dataclass(frozen=True)
class Seen:
    """A worker's answer on a look-up."""

    job_id: int
    event: events.MachinesSeen


@dataclass(frozen=True)
class Answered:
    """What a call tells of its cloud. `may_exist`: machines may, or do, that were asked for."""

    is_throttled: bool = False
    may_exist: bool = True


@dataclass(frozen=True)
class Call:
    """A call of a cloud: made by whoever calls it. `launch`: how it stands in line; None: it goes first."""

    make: Callable[[], Answered]
    launch: Launch | None = None

    def __call__(self) -> Answered:
        return self.make()


class Threads(Protocol):
    """What makes calls. A future that was cancelled before its call began means that it is not made: all of
    `concurrent.futures`' executors do so."""

    def submit(self, call: Call, /) -> Future[Any]: ...


Answer = Callable[[Performed | Seen], None]
Pools = Callable[[str], Threads]


@dataclass
class Dispatcher:
    """`pools`: what makes the calls of a cloud, by its name. `answer`: called from any thread.

    A termination waits for the launch of the same attempt to be answered: ending machines while they are still being
    bought would miss some of them. A launch that has not begun is taken back instead. `may_act`: whether the lease is
    held; without it, nothing outside is touched.
    """

    actor: Actor
    pools: Pools
    answer: Answer
    may_act: Callable[[], bool] = lambda: True
    _tries: dict[int, int] = field(default_factory=dict)
    _launching: dict[int, set[AttemptKey]] = field(default_factory=dict)
    _held: dict[AttemptKey, Intent] = field(default_factory=dict)
    _in_line: dict[AttemptKey, tuple[Intent, Future[Any]]] = field(default_factory=dict)
    _open: dict[int, set[int]] = field(default_factory=dict)

    def take_up(self, intent: Intent) -> None:
        """Count `intent` as open. Call before any of a batch is performed."""
        self._open.setdefault(intent.job_id, set()).add(intent.id)
        self._tries.setdefault(intent.id, intent.tries)
        if intent.kind is IntentKind.LAUNCH:
            self._launching.setdefault(intent.job_id, set()).add(_key(intent))

    def knows(self, intent: Intent) -> bool:
        """Whether `intent` was taken up, and not settled since."""
        return intent.id in self._open.get(intent.job_id, ())

    def perform(self, intent: Intent, machines: Machines) -> None:
        """Perform an intent that was taken up. `machines`: the attempt's, as far as they are known."""
        if intent.kind is IntentKind.TERMINATE and _key(intent) in self._launching.get(intent.job_id, ()):
            self._held[_key(intent)] = intent
            self._take_back(_key(intent))
            return
        make = partial(self._work, intent, machines, self._tries[intent.id])
        done = self.pools(_pool(intent)).submit(Call(make, _launch(intent)))
        if intent.kind is IntentKind.LAUNCH:
            self._in_line[_key(intent)] = (intent, done)

    def _take_back(self, key: AttemptKey) -> None:
        """Nobody wants the attempt any more: if its launch was never begun, it is not going to.

        One that may have happened is asked for again, by its token: only so are its machines, and what they cost, known
        for certain.
        """
        launch, done = self._in_line.get(key, (None, None))
        if launch is None or done is None or self._tries[launch.id] > 0 or not done.cancel():
            return
        del self._in_line[key]
        self.answer(Performed(launch, Outcome("withdrawn", events.LaunchWithdrawn(*key[1:]))))

    def look(self, key: AttemptKey, offer: Offer, machines: Machines) -> None:
        """Ask the cloud about an attempt's machines."""
        if machines.known:
            self.pools(offer.cloud).submit(Call(partial(self._look, key, offer, machines)))

    def tried(self, intent: Intent) -> int:
        """Count a try that settled nothing; how many there were."""
        self._tries[intent.id] += 1
        return self._tries[intent.id]

    def settled(self, intent: Intent) -> Intent | None:
        """`intent` has its outcome recorded. Returns an intent that waited for it and can be performed now."""
        self._open.get(intent.job_id, set()).discard(intent.id)
        self._tries.pop(intent.id, None)
        if intent.kind is not IntentKind.LAUNCH:
            return None
        self._launching.get(intent.job_id, set()).discard(_key(intent))
        self._in_line.pop(_key(intent), None)
        return self._held.pop(_key(intent), None)

    def is_open(self, intent: Intent) -> bool:
        """Whether `intent` was taken up, and its outcome is not recorded yet."""
        return intent.id in self._open.get(intent.job_id, set())

    def has_open(self, job_id: int, *, but: int | None = None) -> bool:
        """Whether an intent of the job is open, apart from `but`."""
        return bool(self._open.get(job_id, set()) - {but})

    def forget(self, job_id: int) -> None:
        """The job is settled, or another's. What is under way for it is answered to nobody."""
        for intent_id in self._open.pop(job_id, ()):
            self._tries.pop(intent_id, None)
        for key in self._launching.pop(job_id, ()):
            self._held.pop(key, None)
            if key in self._in_line:
                self._in_line.pop(key)[1].cancel()

    def _work(self, intent: Intent, machines: Machines, tries: int) -> Answered:
        result: Outcome | Later
        try:
            result = self.actor.perform(intent, machines, tries) if self.may_act() else _NOT_NOW
        except Exception as error:  # noqa: BLE001 - told apart, and logged, there
            result = _failed(intent, error)
        self.answer(Performed(intent, result))
        return Answered(result.is_throttled, may_exist=_may_exist(result))

    def _look(self, key: AttemptKey, offer: Offer, machines: Machines) -> Answered:
        seen = self.actor.look(key, offer, machines)
        if isinstance(seen, Fault):
            return Answered(seen.reason is Reason.THROTTLED)
        self.answer(Seen(key[0], seen))
        return Answered()


def _failed(intent: Intent, error: Exception) -> Later:
    if isinstance(error, LeaseLost) or is_away(error):
        log.warning("intent.not_now", intent=intent.id, kind=intent.kind.value, job=intent.job_id, why=str(error))
        return _NOT_NOW
    log.exception("intent.worker_failed", intent=intent.id, kind=intent.kind.value, job=intent.job_id)
    return Later(_WORKER_ERROR_RETRY_S, f"{type(error).__name__}: {error}")


def _may_exist(result: Outcome | Later) -> bool:
    event = result.event if isinstance(result, Outcome) else None
    return not isinstance(event, events.LaunchRefused) or event.may_exist


def _launch(intent: Intent) -> Launch | None:
    """How an intent stands in line: what a job begins with waits its turn, what brings it to an end does not."""
    if intent.kind not in (IntentKind.LAUNCH, IntentKind.PREPARE_STORAGE):
        return None
    # Intents of earlier versions do not say whose they are.
    return Launch(_key(intent), **intent.request.get("line", {}), machines=intent.request.get("num_nodes", 0))


def _key(intent: Intent) -> AttemptKey:
    return (intent.job_id, intent.task, intent.generation)


def _pool(intent: Intent) -> str:
    return str(intent.request["offer"]["cloud"]) if "offer" in intent.request else "storage"
