"""Makes one call on a thread of `worker_pool`: a wrapper around `cloud_actions`.

The result goes to the sink (`reconcile.inbox`), the feedback on the cloud's answer to the pool.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from perdure.controller.clouds.base.protocol import Fault
from perdure.controller.execute.call_types import (
    CallFeedback,
    CloudCall,
    DescribeAttempt,
    DescribeResult,
    IntentOutcome,
    IntentResult,
    PerformIntent,
    ResultSink,
    RetryLater,
)
from perdure.controller.execute.cloud_actions import CloudActions
from perdure.controller.store.engine.database import is_transient
from perdure.controller.store.records.intents import Intent
from perdure.controller.store.records.job_claims import LeaseLost
from perdure.recovery import events
from perdure.recovery.reasons import Reason

log = structlog.get_logger(__name__)

_WORKER_ERROR_RETRY_S = 30.0
_RETRY_SOON = RetryLater(0.5, attempted=False)


@dataclass(frozen=True)
class CallOnThread:
    """Safe to use from any thread."""

    executor: CloudActions
    on_result: ResultSink
    #: Whether the lease is held. Without it no intent is performed; it is retried soon.
    may_act: Callable[[], bool] = lambda: True
    #: Called with each call that ended: its cloud, its kind, its outcome, and how many seconds it took.
    on_call: Callable[[str, str, str, float], None] = lambda _cloud, _kind, _outcome, _seconds: None

    def __call__(self, call: CloudCall) -> CallFeedback:
        started = time.perf_counter()
        match call:
            case PerformIntent():
                kind, (feedback, outcome) = call.intent.kind.value, self._perform(call)
            case DescribeAttempt():
                kind, (feedback, outcome) = "describe", self._describe(call)
        self.on_call(call.pool, kind, "throttled" if feedback.is_throttled else outcome, time.perf_counter() - started)
        return feedback

    def _perform(self, call: PerformIntent) -> tuple[CallFeedback, str]:
        """The feedback, and the outcome in a word."""
        result: IntentOutcome | RetryLater
        try:
            can_act = self.may_act()
            result = self.executor.perform(call.intent, call.machines, call.try_count) if can_act else _RETRY_SOON
        except Exception as error:  # noqa: BLE001 - classified and logged in _retry_after
            result = _retry_after(call.intent, error)
        self.on_result(IntentResult(call.intent, result))
        outcome = result.result if isinstance(result, IntentOutcome) else "error" if result.error else "pending"
        return CallFeedback(result.is_throttled, may_exist=_may_exist(result)), outcome

    def _describe(self, call: DescribeAttempt) -> tuple[CallFeedback, str]:
        """The feedback, and the outcome in a word."""
        described = self.executor.describe(call.key, call.offer, call.machines)
        if isinstance(described, Fault):
            return CallFeedback(described.reason is Reason.THROTTLED), "error"
        self.on_result(DescribeResult(call.key[0], described))
        return CallFeedback(), "described"


def _retry_after(intent: Intent, error: Exception) -> RetryLater:
    if isinstance(error, LeaseLost) or is_transient(error):
        log.warning("intent.deferred", intent=intent.id, kind=intent.kind.value, job=intent.job_id, why=str(error))
        return _RETRY_SOON
    log.exception("intent.worker_failed", intent=intent.id, kind=intent.kind.value, job=intent.job_id)
    return RetryLater(_WORKER_ERROR_RETRY_S, f"{type(error).__name__}: {error}")


def _may_exist(result: IntentOutcome | RetryLater) -> bool:
    event = result.event if isinstance(result, IntentOutcome) else None
    return not isinstance(event, events.LaunchRefused) or event.may_exist
