"""One controller process on virtual time, from its start to its death, which may come anywhere."""

from __future__ import annotations

import random
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent
from sqlalchemy.exc import DBAPIError

from faultworld.database import MortalDatabase
from faultworld.loop import VirtualLoop
from faultworld.network import PATIENCE_S, Link
from faultworld.parts import Parts
from faultworld.threads import Killed, Lock, Single, Thread, Threads
from faultworld.timing import SkewedClock
from perdure.controller.api.auth import admit
from perdure.controller.store.wake import Topic

if TYPE_CHECKING:
    from faultworld.nodes import Node
    from faultworld.world import World

SWEEP_S = 15.0
MOST_TURNS = 2000  # at one moment: far above any real burst
# How often, and for how long, others go first at a point: mostly for a moment, now and then for long.
_WAITS, _WAITS_LONG = 0.1, 0.01
_WAIT_S, _LONG_WAIT_S = 0.05, 2.0

# To a node's call: the spec, if it was asked for, and the connection; without a connection, a 401.
Answer = tuple[dict[str, Any] | None, Link | None]


class Process:
    """A controller from its start to its death. `alone`: no other can be running, as on SQLite.

    `doom`: it dies at the so-manyth point from now; `standstill`: it freezes there, for so many seconds. `then_s`: how
    long after its death another one starts in its place; None if none has to.
    """

    def __init__(self, world: World, number: int, home: Path, *, alone: bool) -> None:
        self.world, self.number, self.alone = world, number, alone
        self.name = f"controller {number}"
        self.rng = random.Random(f"{world.scenario.seed}:process:{number}")
        self.is_alive, self.is_frozen, self.serves = True, False, False
        self.doom: int | None = None
        self.standstill: tuple[int, float] | None = None
        self.then_s: float | None = 1.0
        self.links: list[Link] = []
        self.threads = Threads(self)
        self._home = home
        self._asleep: list[tuple[Any, tuple[Any, ...]]] = []
        self._turning = Lock(self.threads)
        self._reconciling = self._was_frozen = self._looping = self._sweeping = self._ticking = False
        self._alarm = float("inf")
        skew = self.rng.uniform(-1, 1) * world.scenario.controller_skew_s
        self.clock = SkewedClock(world.scheduler, skew)
        self.database: Any = MortalDatabase(self)
        self.cut_off_until = 0.0  # from the database
        self.loop = VirtualLoop(
            now=world.scheduler.now, at=self.at, work=lambda do: self.soon(0.05, do), wake=self._wake_loop
        )
        self._listener = Single(self, 0.01)
        self.parts: Parts | None = None

    # --- its life -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """As `Daemon` is made, and as it begins: claim, adopt, and only then answer."""
        try:
            parts = self.parts = Parts(self, self._home, alone=self.alone)
            parts.repair()
            parts.ownership.begin()
        except (DBAPIError, TimeoutError):
            self.world.process_dies(self, "the database refused its start")
            raise Killed from None
        if parts.peers is not None:
            self.soon(0.1, parts.peers._watch._look)
        self.serves = True
        self.world.tell(self.name, "answers")
        self.soon(parts.lease.length_s / 3, self._tick)
        self.soon(SWEEP_S, self._sweep)

    def stand_still(self) -> None:
        """Freeze, here and now, for as long as `standstill` says; others may find out meanwhile."""
        assert self.standstill is not None
        _, seconds = self.standstill
        self.standstill = None
        self.world.tell(self.name, f"stands still for {seconds} s")
        self.world.met["froze"] += 1
        self.is_frozen = True
        self.world.scheduler.after(seconds, self._thaw)
        for link in self.links:
            self.world.scheduler.after(PATIENCE_S, self._gives_up, link)
        if isinstance(getcurrent(), Thread):
            self.threads.sleep(0.0)

    def _gives_up(self, link: Link) -> None:
        """A node hears nothing more from a controller that is frozen."""
        if self.is_frozen:
            link.node_gives_up()

    def _thaw(self) -> None:
        if not self.is_alive:
            return
        self.world.tell(self.name, "goes on")
        self.is_frozen, self._was_frozen = False, True
        self.threads.thaw()
        asleep, self._asleep = self._asleep, []
        for do, args in asleep:
            self.at(self.world.scheduler.now(), do, *args)

    def die(self) -> None:
        self.is_alive = self.serves = False
        self.world.scheduler.after(0.0, self.threads.end)
        for link in self.links:
            link.reset()

    def stop(self) -> None:
        """As `Daemon.close`: connections end first, what is queued is taken, then all is given back."""
        self.serves = False
        parts = self.parts
        assert parts is not None
        for link in self.links:
            link._arrive({"type": "websocket.disconnect"})
        self.threads.sleep(0.5)
        with self._turning:
            while parts.reconciler.turn(block=False):
                pass
            if parts.peers is not None:
                parts.peers._outgoing._ended.set()
                parts.peers._watch._ended.set()
            parts.ownership.end()
            self.world.process_dies(self, "stopped in order")

    # --- its points ---------------------------------------------------------------------------------------

    def point(self, name: str, *, waits: bool = True) -> bool:
        """A moment at which a process may die or freeze, and its threads let others go first.

        True where it is to freeze, and can not wait here.
        """
        if not self.is_alive:
            raise Killed
        if self.doom is not None:
            self.doom -= 1
            if self.doom <= 0:
                self.world.process_dies(self, name)
                raise Killed
        if self.standstill is not None:
            left, seconds = self.standstill
            self.standstill = (left - 1, seconds)
            if left <= 1:
                if not waits:
                    return True
                self.stand_still()
        if waits:
            self.may_wait()
        return False

    def may_wait(self) -> None:
        """Let others go first, perhaps."""
        chance = self.rng.random()
        if chance < _WAITS:
            self.threads.sleep(self.rng.uniform(0, _LONG_WAIT_S if chance < _WAITS_LONG else _WAIT_S))

    # --- its time -----------------------------------------------------------------------------------------

    def at(self, when: float, do: Any, *args: Any) -> None:
        self.world.scheduler.at(when, self._do, do, args)

    def after(self, seconds: float, do: Any, *args: Any) -> None:
        self.at(self.world.scheduler.now() + seconds, do, *args)

    def soon(self, within_s: float, do: Any, *args: Any) -> None:
        self.after(self.rng.uniform(0, within_s), do, *args)

    def _do(self, do: Any, args: tuple[Any, ...]) -> None:
        if not self.is_alive:
            return
        if self.is_frozen:
            self._asleep.append((do, args))
            return
        self.threads.start(self._run, do, args)

    def _run(self, do: Any, args: tuple[Any, ...]) -> None:
        try:
            do(*args)
        except Killed:
            return
        except Exception:
            self.world.judge.turn_failed(traceback.format_exc(limit=-4))

    def look_for_work(self) -> None:
        """After anything happened: have the reconcile thread run, if there is something for it."""
        if self._reconciling or not self.is_alive or self.is_frozen or self.parts is None:
            return
        if not self.parts.reconciler._agenda._queue.empty():
            self._reconciling = True
            self.soon(0.02, self._reconcile)

    def _reconcile(self) -> None:
        with self._turning:
            self._reconciling = True
            self._take_turns()
            self._reconciling = False

    def _take_turns(self) -> None:
        assert self.parts is not None
        reconciler = self.parts.reconciler
        if not self._was_frozen:
            reconciler._sleep.seen_at = self.clock.now()  # its thread comes round every few seconds
        self._was_frozen = False
        turns = 0
        while reconciler.turn(block=False):
            turns += 1
            if turns > MOST_TURNS:
                self.world.judge.breaks("I6", "the reconciler spins: a job is woken again and again for nothing")
                raise Killed
        due = reconciler.next_due()
        if due is not None and due < self._alarm:
            self._alarm = due
            # A hair later: what is due by this clock may not be so after the skew was taken off and put on again.
            self.at(due - self.clock.skew_s + 1e-6, self._alarm_rings)
        if reconciler._outage.is_on:
            self.after(self.rng.uniform(1, 5), self._reconcile)  # its thread comes round
        self.world.judge.looks_at(self)

    def _alarm_rings(self) -> None:
        self._alarm = float("inf")
        self._reconcile()

    def _wake_loop(self) -> None:
        if not self._looping and self.is_alive:
            self._looping = True
            self.soon(0.005, self._run_loop)

    def _run_loop(self) -> None:
        self._looping = False
        self.loop.run_ready()

    def _tick(self) -> None:
        assert self.parts is not None
        self.after(self.parts.lease.length_s / 3, self._tick)
        if not self._ticking:
            self._ticking = True
            self.parts.ownership.tick()
            self._ticking = False
            if not self.parts.lease.is_held():
                self.parts.channel.hang_up()  # as `Daemon._let_go`

    def _sweep(self) -> None:
        assert self.parts is not None
        self.after(SWEEP_S, self._sweep)
        if not self._sweeping:
            self._sweeping = True
            try:
                self.parts.sweep.run()
            except DBAPIError:
                pass
            finally:
                self._sweeping = False

    # --- what reaches it ----------------------------------------------------------------------------------

    def is_told(self, topic: Topic, job_id: int) -> None:
        """Another process's transaction says so."""
        if self.parts is not None and self.parts.peers is not None:
            self._listener.submit(self.parts.peers._told, topic, [job_id])

    def answer_call(self, node: Node, token: str, *, with_spec: bool) -> Answer | None:
        """A node calls. None: not now."""
        parts = self.parts
        if not self.serves or parts is None:
            return None
        spec = None
        try:
            admitted = admit(parts.services, token, str(node.rank))
            if admitted is None or (with_spec and not admitted.is_live):
                return None, None
            if with_spec:
                with self.database.connect() as conn:
                    spec = parts.specs.spec(conn, *admitted.place)
        except DBAPIError:
            return None
        if with_spec and spec is None:
            return None, None
        link = Link(node, self, random.Random(f"{node.rng.random()}"))
        self.links.append(link)
        served = self.loop.create_task(parts.channel.serve(link, admitted.place))  # type: ignore[arg-type]
        served.add_done_callback(lambda _: self._served(link))
        return spec, link

    def _served(self, link: Link) -> None:
        link.reset()
        if link in self.links:
            self.links.remove(link)
