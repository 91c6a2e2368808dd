"""Bookkeeping of open intents: which one may be sent to the workers now, and which one waits for another.

Used by the reconcile thread alone. It makes no calls: the pools of `worker_pool` do, and their results go to
the reconciler's inbox.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from perdure.controller.execute.call_types import (
    CloudCall,
    DescribeAttempt,
    IntentOutcome,
    IntentResult,
    PerformIntent,
    ResultSink,
)
from perdure.controller.execute.machine_ids import MachineIds
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.records.intents import Intent, IntentKind
from perdure.recovery import events
from perdure.recovery.market.view import Offer

Item = TypeVar("Item")


class CallSubmitter(Protocol):
    """Makes calls. A call whose future was cancelled before the call began must not be made."""

    def submit(self, call: CloudCall, /) -> Future[Any]: ...


@dataclass
class Dispatcher:
    """Tracks the open intents of this controller's jobs.

    A termination waits for the result of the same attempt's launch: ending machines while they are still being launched
    would miss some of them. A launch that has not begun, or waits to begin, is withdrawn instead.
    """

    calls: CallSubmitter
    on_result: ResultSink  # receives the outcome of withdrawn launches
    clock: Clock
    _tries: dict[int, int] = field(default_factory=dict)  # by intent
    _launching: dict[int, set[AttemptKey]] = field(default_factory=dict)  # by job
    _deferred: dict[AttemptKey, Intent] = field(default_factory=dict)  # terminations that wait for a launch
    _queued: dict[AttemptKey, tuple[Intent, Future[Any]]] = field(default_factory=dict)  # launches
    _waiting: set[AttemptKey] = field(default_factory=set)  # launches that called no cloud yet, and will try again
    _withdrawn: set[int] = field(default_factory=set)  # launches, by intent, whose outcome is not recorded yet
    _open: dict[int, set[int]] = field(default_factory=dict)  # intents by job
    _begun_at: dict[int, float] = field(default_factory=dict)  # terminations, by intent: when no launch was open

    def track(self, intent: Intent) -> None:
        """Count `intent` as open. Track a whole batch before performing any of it."""
        self._open.setdefault(intent.job_id, set()).add(intent.id)
        self._tries.setdefault(intent.id, intent.try_count)
        if intent.kind is IntentKind.LAUNCH:
            self._launching.setdefault(intent.job_id, set()).add(intent.attempt_key)

    def is_tracked(self, intent: Intent) -> bool:
        """Whether `intent` is tracked and not complete."""
        return intent.id in self._open.get(intent.job_id, ())

    def perform(self, intent: Intent, machines: MachineIds) -> None:
        """Send a tracked intent to the workers. `machines`: the attempt's, as far as they are known."""
        key = intent.attempt_key
        if intent.kind is IntentKind.TERMINATE and key in self._launching.get(intent.job_id, ()):
            self._deferred[key] = intent
            self._withdraw(key)
            return
        if intent.kind is IntentKind.TERMINATE and not machines.known:
            # The last call of a launch without a result ended just now, perhaps long after the termination was
            # decided. Its machine may exist although the cloud does not list it yet.
            machines = replace(machines, since=self._begun_at.setdefault(intent.id, self.clock.now()))
        if intent.id in self._withdrawn:
            return
        self._waiting.discard(key)
        done = self.calls.submit(PerformIntent(intent, machines, self._tries[intent.id]))
        if intent.kind is IntentKind.LAUNCH:
            self._queued[key] = (intent, done)

    def _withdraw(self, key: AttemptKey) -> None:
        """Cancel the attempt's launch, if no call was made for it.

        A launch that may have happened is repeated with its token instead: only its response shows for certain which
        machines it launched and what they cost.
        """
        launch, done = self._queued.get(key, (None, None))
        if launch is None or done is None or self._tries[launch.id] > 0:
            return
        if key not in self._waiting and not done.cancel():
            return
        del self._queued[key]
        self._withdrawn.add(launch.id)
        self.on_result(IntentResult(launch, IntentOutcome("withdrawn", events.LaunchCancelled(*key[1:]))))

    def describe(self, key: AttemptKey, offer: Offer, machines: MachineIds) -> None:
        """Ask the cloud about an attempt's machines, if any are known."""
        if machines.known:
            self.calls.submit(DescribeAttempt(key, offer, machines))

    def count_attempt(self, intent: Intent, *, attempted: bool) -> int:
        """Count a try whose result was not final. Returns how many there were, or 0 if it called no cloud.

        A launch that called none is withdrawn if a termination waits for it.
        """
        if attempted:
            self._tries[intent.id] += 1
            return self._tries[intent.id]
        if intent.kind is IntentKind.LAUNCH:
            self._waiting.add(intent.attempt_key)
            if intent.attempt_key in self._deferred:
                self._withdraw(intent.attempt_key)
        return 0

    def complete(self, intent: Intent) -> Intent | None:
        """Stop tracking `intent`: its outcome is recorded. Returns the intent that waited for it, if there is one."""
        _discard(self._open, intent.job_id, intent.id)
        self._tries.pop(intent.id, None)
        self._begun_at.pop(intent.id, None)
        if intent.kind is not IntentKind.LAUNCH:
            return None
        self._withdrawn.discard(intent.id)
        self._waiting.discard(intent.attempt_key)
        _discard(self._launching, intent.job_id, intent.attempt_key)
        self._queued.pop(intent.attempt_key, None)
        return self._deferred.pop(intent.attempt_key, None)

    def has_open(self, job_id: int, excluding: int | None = None) -> bool:
        """Whether an intent of the job is open, apart from the intent `excluding`."""
        return bool(self._open.get(job_id, set()) - {excluding})

    def forget(self, job_id: int) -> None:
        """Stop tracking a job that is finalized or belongs to another controller. Results still to come are ignored."""
        for intent_id in self._open.pop(job_id, ()):
            self._tries.pop(intent_id, None)
            self._begun_at.pop(intent_id, None)
            self._withdrawn.discard(intent_id)
        for key in self._launching.pop(job_id, ()):
            self._deferred.pop(key, None)
            self._waiting.discard(key)
            if key in self._queued:
                self._queued.pop(key)[1].cancel()


def _discard(sets: dict[int, set[Item]], job_id: int, item: Item) -> None:
    """Remove `item` from the set of a job. A job keeps no empty set: most of them have nothing open."""
    if (items := sets.get(job_id)) is None:
        return
    items.discard(item)
    if not items:
        del sets[job_id]
