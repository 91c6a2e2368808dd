"""What autoscalers say about pods that wait for a node, in events: that one is on its way, or that none will come.

Sources: the cluster autoscaler's FAQ (TriggeredScaleUp, NotTriggerScaleUp), and Karpenter's scheduler (Nominated, and
FailedScheduling with Karpenter as its source; the same reason from the scheduler says nothing about nodes to come).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from perdure.controller.clouds.kubernetes.api.errors import ApiError
from perdure.controller.clouds.kubernetes.api.watch import Object

SCALE_UP_S = 900.0  # how long a node may take to come, from the last sign of it
RECHECK_S = 15.0
_COMING = ("TriggeredScaleUp", "Nominated")
_REFUSED = "NotTriggerScaleUp"
_FAILED, _KARPENTER = "FailedScheduling", "karpenter"
_MAX_REMEMBERED = 10_000


@dataclass(frozen=True)
class ScaleUp:
    """The last sign. `since`: when it was first seen, epoch seconds. `refusal`: why no node comes; "" if one does."""

    since: float
    refusal: str = ""

    def holds_at(self, now: float) -> bool:
        """Whether the pod is worth its wait."""
        return not self.refusal and now < self.since + SCALE_UP_S


@dataclass(frozen=True)
class _Known:
    read_at: float
    event: str  # the sign's own uid and count
    sign: ScaleUp | None


class ScaleUps:
    """Thread-safe. While a sign holds, the events of the pod are read once in RECHECK_S."""

    def __init__(self, list_events: Callable[[str], list[Object]], now: Callable[[], float]) -> None:
        self._list_events = list_events
        self._now = now
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}

    def sign_for(self, pod: Object) -> ScaleUp | None:
        """The autoscaler's last sign; None if there is none, or it cannot be read: then the last known one."""
        uid, now = str(pod["metadata"].get("uid")), self._now()
        with self._lock:
            known = self._known.get(uid)
        if known is not None and known.sign and known.sign.holds_at(now) and now - known.read_at < RECHECK_S:
            return known.sign
        try:
            sign = _last_sign(self._list_events(uid))
        except ApiError:
            return known.sign if known else None
        if sign is None:
            new = _Known(now, "", None)
        elif known is not None and known.event == sign[0]:
            new = _Known(now, known.event, known.sign)
        else:
            new = _Known(now, sign[0], ScaleUp(now, sign[1]))
        with self._lock:
            if len(self._known) >= _MAX_REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[uid] = new
        return new.sign


def _last_sign(events: Iterable[Object]) -> tuple[str, str] | None:
    """(what identifies it, the refusal or "") of the newest event of an autoscaler."""
    signs = [event for event in events if _is_sign(event)]
    if not signs:
        return None
    newest = max(enumerate(signs), key=lambda one: (_stamp(one[1]), one[0]))[1]
    series = (newest.get("series") or {}).get("count") or newest.get("count") or 1
    identity = f"{newest['metadata'].get('name')}/{series}"
    refusal = "" if newest.get("reason") in _COMING else f"{newest.get('reason')}: {newest.get('message', '')}"
    return identity, refusal


def _is_sign(event: Object) -> bool:
    reason = event.get("reason")
    if reason == _FAILED:
        source = (event.get("source") or {}).get("component") or event.get("reportingComponent")
        return source == _KARPENTER
    return reason in (*_COMING, _REFUSED)


def _stamp(event: Object) -> str:
    """RFC 3339 in UTC: these compare as text."""
    last = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(last or event.get("firstTimestamp") or event["metadata"].get("creationTimestamp") or "")
