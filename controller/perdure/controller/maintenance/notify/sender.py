"""Sends what is in the outbox: claims rows with a lease, delivers them, and marks them.

Delivery is at least once. If a sender dies after a delivery and before the mark, the next one sends it again, with the
same event id: receivers use it to count an event once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from zlib import crc32

import structlog
from sqlalchemy import Engine

from perdure.controller.maintenance.notify.channel_protocol import Delivered, Deliverer, Message, NotDelivered
from perdure.controller.maintenance.notify.messages import digest, single
from perdure.controller.maintenance.notify.pace import MAX_DIGEST, MAX_SINGLES, ChannelPace, SendAs
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.config.notify_config import CALLBACK, NotifyConfig
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.runtime.loop_guard import LoopGuard
from perdure.controller.runtime.metrics.daemon_metrics import DaemonMetrics
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.records import notifications
from perdure.controller.store.records.notifications import Notification

log = structlog.get_logger(__name__)

POLL_S = 1.0
LEASE_S = 300.0
"""Longer than any batch takes: two callbacks of a minute each, twice."""
RETRY_S = (5.0, 30.0, 120.0, 600.0, 3600.0, 21600.0)
GIVE_UP_S = 86400.0
KEPT_S = 30 * 86400.0
_CLEAN_INTERVAL_S = 3600.0
_MAX_WORKERS = 8
_MAX_CALLBACKS = 8  # at once, of different jobs
_DELETED_AT_ONCE = 1000
_TEST_KIND = "test"


@dataclass
class _Channel:
    deliverer: Deliverer
    pace: ChannelPace
    active: int = 0  # deliveries under way: one at most, except of callbacks


class NotificationSender:
    """One per daemon. `clock`: of the rows, at `speed` relative to real time. `owner`: the lease of this controller."""

    def __init__(
        self,
        config: NotifyConfig,
        channels: Mapping[str, Deliverer],
        database: Engine,
        clock: Clock,
        *,
        owner: str,
        speed: float = 1.0,
        is_alone: bool = True,
        metrics: DaemonMetrics | None = None,
    ) -> None:
        self._channels = {
            name: _Channel(deliverer, ChannelPace(_digest_s(config, name))) for name, deliverer in channels.items()
        }
        self._database = database
        self._clock = clock
        self._owner = owner
        self._speed = speed
        self._is_alone = is_alone
        self._metrics = metrics or DaemonMetrics()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._workers = ThreadPoolExecutor(_MAX_WORKERS, thread_name_prefix="notify")
        # Of their own: a callback takes up to a minute, and other channels must not wait for it.
        self._callback_workers = ThreadPoolExecutor(_MAX_CALLBACKS, thread_name_prefix="callbacks")
        self._thread: threading.Thread | None = None
        self._cleaned_at = float("-inf")

    @property
    def channel_names(self) -> list[str]:
        return sorted(name for name in self._channels if name != CALLBACK)

    def start(self) -> None:
        """Start sending. Without other controllers, leases of an earlier process end at once."""
        self._thread = threading.Thread(target=self._run, name="notifications", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Claim nothing more. Deliveries under way end by themselves, or are repeated by the next sender."""
        self._stopped.set()
        self._wake.set()
        for workers in (self._workers, self._callback_workers):
            workers.shutdown(wait=False, cancel_futures=True)

    def wake(self) -> None:
        """Something was queued. From any thread."""
        self._wake.set()

    def send_test(self, channel: str) -> Delivered | NotDelivered | None:
        """Deliver a test message to a channel now. None if there is no such channel."""
        known = self._channels.get(channel)
        if known is None or channel == CALLBACK:
            return None
        now = self._clock.now()
        body = {"id": f"test_{int(now * 1000)}", "type": _TEST_KIND, "version": 1, "data": {"channel": channel}}
        text = f"Perdure can send to the channel {channel!r}."
        result = _deliver(known.deliverer, Message(str(body["id"]), _TEST_KIND, "A test of Perdure", text, body))
        self._count(channel, result, 1)
        return result

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        guard = LoopGuard("notifications")
        has_released = not self._is_alone
        while not self._stopped.is_set():
            with guard:
                try:
                    if not has_released:
                        with self._database.begin() as conn:
                            notifications.release_leases(conn)
                        has_released = True
                    self.run_once()
                except UNAVAILABLE as error:
                    log.warning("database.unavailable", error=str(error))
            self._wake.wait(POLL_S)
            self._wake.clear()

    def run_once(self, *, wait: bool = False) -> None:
        """Begin what is due. `wait`: until it has ended. Raises what the database raises."""
        now = self._clock.now()
        with self._database.connect() as conn:
            due = notifications.due_channels(conn, now)
        self._metrics.notifications_due.set(sum(channel.number for channel in due))
        begun: list[Future[None]] = []
        for channel in due:
            known = self._channels.get(channel.name)
            if known is None:
                self._give_up_unconfigured(channel, now)
            elif channel.name == CALLBACK:
                begun += self._begin_callbacks(known, channel.number)
            elif (send_as := self._choose(known, channel, now)) is not SendAs.NOTHING:
                begun.append(self._workers.submit(self._send, channel.name, known, send_as))
        for future in begun if wait else ():
            future.result()
        if now - self._cleaned_at > _CLEAN_INTERVAL_S * self._speed:
            self._cleaned_at = now
            self._delete_old(now - KEPT_S * self._speed)

    def _delete_old(self, before: float) -> None:
        """In small transactions: others write to the database meanwhile."""
        while not self._stopped.is_set():
            with self._database.begin() as conn:
                if notifications.delete_done(conn, before, _DELETED_AT_ONCE) < _DELETED_AT_ONCE:
                    return

    def _begin_callbacks(self, channel: _Channel, number: int) -> list[Future[None]]:
        """Those of several jobs run at once: one job's slow callback holds up no other's."""
        with self._lock:
            starting = min(number, _MAX_CALLBACKS - channel.active)
            channel.active += starting
        return [self._callback_workers.submit(self._send, CALLBACK, channel, SendAs.SINGLES) for _ in range(starting)]

    def _choose(self, channel: _Channel, due: notifications.DueChannel, now: float) -> SendAs:
        with self._lock:
            if channel.active:
                return SendAs.NOTHING
            send_as = channel.pace.choose(due.number, due.oldest_at / self._speed, now / self._speed)
            channel.active += send_as is not SendAs.NOTHING
            return send_as

    def _send(self, name: str, channel: _Channel, send_as: SendAs) -> None:
        try:
            while self._send_claimed(name, channel, send_as) and name == CALLBACK and not self._stopped.is_set():
                pass  # the next job's
        except UNAVAILABLE as error:
            log.warning("database.unavailable", error=str(error))
        except Exception:
            log.exception("notifications.failed", channel=name)
        finally:
            with self._lock:
                channel.active -= 1
                channel.pace.on_sent(send_as, self._clock.now() / self._speed)

    def _send_claimed(self, name: str, channel: _Channel, send_as: SendAs) -> bool:
        """Whether there was anything to send."""
        is_digest = send_as is SendAs.DIGEST
        with self._database.begin() as conn:
            claimed = notifications.claim(
                conn,
                name,
                self._owner,
                now=self._clock.now(),
                lease_s=LEASE_S * self._speed,
                limit=MAX_DIGEST if is_digest else 1 if name == CALLBACK else MAX_SINGLES,
                one_per_job=not is_digest,
            )
        if not claimed:
            return False
        failpoint("notification.claimed")
        for batch in [claimed] if is_digest and len(claimed) > 1 else [[one] for one in claimed]:
            message = digest(batch) if len(batch) > 1 else single(batch[0])
            result = _deliver(channel.deliverer, message)
            failpoint("notification.sent")
            self._mark(name, batch, result)
            failpoint("notification.marked")
        return True

    def _mark(self, channel: str, batch: Sequence[Notification], result: Delivered | NotDelivered) -> None:
        now, ids = self._clock.now(), [notification.id for notification in batch]
        self._count(channel, result, len(batch))
        if isinstance(result, Delivered):
            with self._database.begin() as conn:
                notifications.mark_done(conn, ids, outcome="sent", now=now, error=result.detail or None)
            return
        log.warning("notifications.not_delivered", channel=channel, error=result.error, events=len(batch))
        oldest = batch[0]
        if result.is_final:
            self._give_up(channel, f"{result.error}: the receiver asks for no more", until=now)
        elif now - oldest.at > GIVE_UP_S * self._speed:
            with self._database.begin() as conn:
                notifications.mark_done(conn, ids, outcome="dead", now=now, error=result.error)
        else:
            pause_s = max(_pause_s(oldest), result.retry_after_s or 0.0)
            with self._database.begin() as conn:
                notifications.mark_failed(conn, ids, error=result.error, wake_at=now + pause_s * self._speed)

    def _give_up_unconfigured(self, channel: notifications.DueChannel, now: float) -> None:
        """Only what has waited for a day: another controller may have the channel, or this one after its next start."""
        until = now - GIVE_UP_S * self._speed
        if channel.oldest_at < until:
            self._give_up(channel.name, "the channel is not configured", until=until)

    def _give_up(self, channel: str, error: str, *, until: float) -> None:
        log.warning("notifications.given_up", channel=channel, error=error)
        with self._database.begin() as conn:
            notifications.give_up_channel(conn, channel, error=error, now=self._clock.now(), until=until)

    def _count(self, channel: str, result: Delivered | NotDelivered, events: int) -> None:
        self._metrics.notifications.inc(channel, "sent" if isinstance(result, Delivered) else "failed", by=events)


def _deliver(deliverer: Deliverer, message: Message) -> Delivered | NotDelivered:
    """Whatever a channel raises, its message counts as tried: rows without a mark would be claimed for ever."""
    try:
        return deliverer.deliver(message)
    except Exception as error:
        log.exception("notifications.channel_failed", message=message.id)
        return NotDelivered(f"a bug in the channel: {type(error).__name__}")


def _digest_s(config: NotifyConfig, name: str) -> float | None:
    channel = config.channels.get(name)
    return channel.digest_s if channel else None


def _pause_s(notification: Notification) -> float:
    """Before the next try: longer each time, and up to a fifth more or less, so that receivers are not hit at once."""
    base = RETRY_S[min(notification.try_count, len(RETRY_S) - 1)]
    share = crc32(f"{notification.event_id}:{notification.try_count}".encode()) / 2**32
    return base * (0.8 + 0.4 * share)
