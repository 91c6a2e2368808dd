"""One controller process on virtual time, from its start to its death, which may happen at any failpoint."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent
from sqlalchemy.exc import DBAPIError

from faultworld.components import Components
from faultworld.database import DatabaseClient
from faultworld.event_loop import VirtualLoop
from faultworld.network import IDLE_TIMEOUT_S, Link
from faultworld.threads import Killed, Lock, SingleThreadExecutor, Thread, Threads
from faultworld.virtual_time import SkewedClock
from perdure.controller.api.auth import identify
from perdure.controller.store.engine.pg_notify import Topic

if TYPE_CHECKING:
    from faultworld.nodes import Node
    from faultworld.world import World

SWEEP_INTERVAL_S = 15.0
MAX_RECONCILER_RUNS = 2000  # without a pause; far more than any real burst
# How likely other threads run at a failpoint, and for how long at most: mostly for a moment, sometimes for long.
_YIELD_CHANCE, _LONG_YIELD_CHANCE = 0.1, 0.01
_MAX_YIELD_S, _MAX_LONG_YIELD_S = 0.05, 2.0

# The answer to a node's call: the spec, if it was requested, and the connection. None instead of it stands for a 401.
ConnectAnswer = tuple[dict[str, Any] | None, Link | None]


class Process:
    """A controller from its start to its death. `alone`: no other one can share its database, as on SQLite."""

    def __init__(self, world: World, number: int, home: Path, *, alone: bool) -> None:
        self.world, self.number, self.alone = world, number, alone
        self.name = f"controller {number}"
        self.rng = random.Random(f"{world.scenario.seed}:process:{number}")
        self.is_alive, self.is_frozen, self.is_serving = True, False, False
        #: It dies at the failpoint that it reaches after so many; None: it does not.
        self.kill_after: int | None = None
        #: After how many failpoints it freezes, and for how many seconds.
        self.freeze_after: tuple[int, float] | None = None
        #: How long after its death another one starts in its place; None: none does.
        self.restart_after_s: float | None = 1.0
        self.links: list[Link] = []
        self.threads = Threads(self)
        self._home = home
        self._deferred: list[
            tuple[Callable[..., object], tuple[Any, ...]]
        ] = []  # calls that were due while it was frozen
        self._reconciler_lock = Lock(self.threads)
        self._reconciling = self._was_frozen = self._loop_is_scheduled = self._sweeping = self._ticking = False
        self._alarm_at = float("inf")
        skew = self.rng.uniform(-1, 1) * world.scenario.controller_skew_s
        self.clock = SkewedClock(world.scheduler, skew)
        self.database: Any = DatabaseClient(self)
        self.cut_off_until = 0.0  # from the database
        self.loop = VirtualLoop(
            now=world.scheduler.now, at=self.at, work=lambda do: self.within(0.05, do), wake=self._schedule_loop
        )
        self._listener = SingleThreadExecutor(self, 0.01)
        self.components: Components | None = None

    # --- start and end --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start as `Daemon` does: claim and adopt jobs, and only then serve."""
        try:
            components = self.components = Components(self, self._home, alone=self.alone)
            components.ownership.start()
        except (DBAPIError, TimeoutError):
            self.world.end_process(self, "the database was down at its start")
            raise Killed from None
        if components.peers is not None:
            self.within(0.1, components.peers._watcher._poll)
        self.is_serving = True
        self.world.record(self.name, "serves")
        self.within(components.lease.duration_s / 3, self._tick)
        self.within(SWEEP_INTERVAL_S, self._sweep)
        if components.queue is not None:
            components.cluster_ticks.start()

    def freeze(self) -> None:
        """Freeze now, for the time in `freeze_after`."""
        assert self.freeze_after is not None
        _, seconds = self.freeze_after
        self.freeze_after = None
        self.world.record(self.name, f"freezes for {seconds} s")
        self.world.fault_counts["froze"] += 1
        self.is_frozen = True
        self.world.scheduler.after(seconds, self._thaw)
        for link in self.links:
            self.world.scheduler.after(IDLE_TIMEOUT_S, self._time_out_node, link)
        if isinstance(getcurrent(), Thread):
            self.threads.sleep(0.0)

    def _time_out_node(self, link: Link) -> None:
        """The node closes its connection to a controller that is still frozen."""
        if self.is_frozen:
            link.time_out_node()

    def may_claim(self) -> bool:
        return self.components is not None and self.components.ownership.may_claim

    def _thaw(self) -> None:
        if not self.is_alive:
            return
        self.world.record(self.name, "continues")
        self.is_frozen, self._was_frozen = False, True
        self.threads.thaw()
        deferred, self._deferred = self._deferred, []
        for do, args in deferred:
            self.at(self.world.scheduler.now(), do, *args)

    def die(self) -> None:
        self.is_alive = self.is_serving = False
        self.world.scheduler.after(0.0, self.threads.end)
        for link in self.links:
            link.close_by_controller()

    def stop(self) -> None:
        """Stop as `Daemon.close` does: close connections, handle queued events, then release the lease."""
        self.is_serving = False
        components = self.components
        assert components is not None
        for link in self.links:
            link.deliver({"type": "websocket.disconnect"})
        self.threads.sleep(0.5)
        with self._reconciler_lock:
            while components.reconciler.run_once(block=False):
                pass
            if components.peers is not None:
                components.peers._outbox._ended.set()
                components.peers._watcher._ended.set()
            components.ownership.stop()
            self.world.end_process(self, "orderly stop")

    # --- failpoints ---------------------------------------------------------------------------------------

    def failpoint(self, name: str, *, can_wait: bool = True) -> bool:
        """A point at which the process may die or freeze, and at which other threads may run.

        Returns True if the process has to freeze but must not wait here: then the caller has to call `freeze`.
        """
        if not self.is_alive:
            raise Killed
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after <= 0:
                self.world.end_process(self, name)
                raise Killed
        if self.freeze_after is not None:
            remaining, seconds = self.freeze_after
            self.freeze_after = (remaining - 1, seconds)
            if remaining <= 1:
                if not can_wait:
                    return True
                self.freeze()
        if can_wait:
            self.maybe_yield()
        return False

    def maybe_yield(self) -> None:
        """Perhaps let other threads run."""
        drawn = self.rng.random()
        if drawn < _YIELD_CHANCE:
            self.threads.sleep(self.rng.uniform(0, _MAX_LONG_YIELD_S if drawn < _LONG_YIELD_CHANCE else _MAX_YIELD_S))

    # --- its time and threads -----------------------------------------------------------------------------

    def at(self, when: float, do: Callable[..., object], *args: Any) -> None:
        """Run `do` in a thread at that time of the world, or when the process is thawed, unless it dies first."""
        self.world.scheduler.at(when, self._run_if_alive, do, args)

    def after(self, seconds: float, do: Callable[..., object], *args: Any) -> None:
        self.at(self.world.scheduler.now() + seconds, do, *args)

    def within(self, seconds: float, do: Callable[..., object], *args: Any) -> None:
        """Run `do` at a random time within the next seconds."""
        self.after(self.rng.uniform(0, seconds), do, *args)

    def _run_if_alive(self, do: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self.is_alive:
            return
        if self.is_frozen:
            self._deferred.append((do, args))
            return
        self.threads.start(self._run_thread, do, args)

    def _run_thread(self, do: Callable[..., object], args: tuple[Any, ...]) -> None:
        try:
            do(*args)
        except Killed:
            return
        except Exception:
            self.world.invariants.on_error(traceback.format_exc(limit=-4))

    def wake_reconciler(self) -> None:
        """Have the reconciler's thread run, if an event is queued for it."""
        if self._reconciling or not self.is_alive or self.is_frozen or self.components is None:
            return
        if not self.components.inbox.queue._queue.empty():
            self._reconciling = True
            self.within(0.02, self._reconcile)

    def _reconcile(self) -> None:
        with self._reconciler_lock:
            self._reconciling = True
            self._run_reconciler()
            self._reconciling = False

    def _run_reconciler(self) -> None:
        assert self.components is not None
        reconciler = self.components.reconciler
        if not self._was_frozen:
            reconciler._suspend_detector.checked_at = self.clock.now()  # its thread runs every few seconds
        self._was_frozen = False
        runs = 0
        while reconciler.run_once(block=False):
            runs += 1
            if runs > MAX_RECONCILER_RUNS:
                spinning = "the reconciler spins: a job is woken repeatedly without effect"
                self.world.invariants.report_violation("I6", spinning)
                raise Killed
        due = reconciler.next_due()
        if due is not None and due < self._alarm_at:
            self._alarm_at = due
            # Slightly later, because converting the skew back and forth may round the time down.
            self.at(due - self.clock.skew_s + 1e-6, self._on_alarm)
        if self.components.inbox.outage.is_down:
            self.after(self.rng.uniform(1, 5), self._reconcile)  # its thread runs every few seconds
        self.world.invariants.check_process(self)

    def _on_alarm(self) -> None:
        self._alarm_at = float("inf")
        self._reconcile()

    def _schedule_loop(self) -> None:
        if not self._loop_is_scheduled and self.is_alive:
            self._loop_is_scheduled = True
            self.within(0.005, self._run_loop)

    def _run_loop(self) -> None:
        self._loop_is_scheduled = False
        self.loop.run_ready()

    def _tick(self) -> None:
        assert self.components is not None
        self.after(self.components.lease.duration_s / 3, self._tick)
        if not self._ticking:
            self._ticking = True
            self.components.ownership.tick()
            self._ticking = False
            self.components.sessions.close_without_lease(self.components.lease.is_held)

    def _sweep(self) -> None:
        assert self.components is not None
        self.after(SWEEP_INTERVAL_S, self._sweep)
        if not self._sweeping:
            self._sweeping = True
            try:
                self.components.sweep.run()
            except DBAPIError:
                pass
            finally:
                self._sweeping = False

    # --- calls and notifications that reach it ------------------------------------------------------------

    def on_notification(self, topic: Topic, job_id: int) -> None:
        """Receive a notification of another process's transaction."""
        if self.components is not None and self.components.peers is not None:
            self._listener.submit(self.components.peers._on_notification, topic, [job_id])

    def serve_call(self, node: Node, token: str, *, with_spec: bool) -> ConnectAnswer | None:
        """Answer a node's call. None: the controller is unavailable."""
        components = self.components
        if not self.is_serving or components is None:
            return None
        spec = None
        try:
            identity = identify(components.api_context, token, str(node.rank))
            if identity is None or (with_spec and not identity.is_live):
                return None, None
            if with_spec:
                with self.database.connect() as conn:
                    spec = components.node_specs.build(conn, identity.place)
        except DBAPIError:
            return None
        if with_spec and spec is None:
            return None, None
        link = Link(node, self, random.Random(f"{node.rng.random()}"))
        self.links.append(link)
        session = self.loop.create_task(components.sessions.serve(link, identity.place))  # type: ignore[arg-type]
        session.add_done_callback(lambda _: self._on_session_end(link))
        return spec, link

    def _on_session_end(self, link: Link) -> None:
        link.close_by_controller()
        if link in self.links:
            self.links.remove(link)
