"""A machine with an agent on it: speaks the agent protocol, keeps its disk, follows the rules of perdure.agent.

What the controller is told crosses as the protocol's own JSON. What is decisive is the agent's own code where that is
pure: how directives follow one another, and the report.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from faultworld.disk import Disk
from faultworld.network import PATIENCE_S, Link
from faultworld.timing import SkewedClock
from faultworld.walk import Walk
from faultworld.workload import Program
from perdure.agent.state import Directive
from perdure.controller.keyring import AttemptKey

if TYPE_CHECKING:
    from faultworld.process import Answer, Process
    from faultworld.world import World

POLL_S, RETRY_S, BEAT_S = 0.1, (0.2, 5.0), 4.5
UNANSWERED_S = 1.0
FOREVER = float("inf")


class Node(Walk):
    """One machine. Public methods are what the world does to it, and what its connection brings."""

    def __init__(self, world: World, cloud: str, machine_id: str, key: AttemptKey, rank: int, token: str) -> None:
        self.world, self.cloud, self.machine_id, self.key, self.rank, self._token = (
            world, cloud, machine_id, key, rank, token,
        )  # fmt: skip
        self.rng = random.Random(f"{world.scenario.seed}:{machine_id}")
        skew = self.rng.uniform(-1, 1) * world.scenario.node_skew_s
        self._clock = SkewedClock(world.scheduler, skew)
        self.disk = Disk()
        self.is_on = True
        self.agent_up = False
        self.link: Link | None = None
        self.program: Program | None = None
        self.born_at = world.scheduler.now()
        self.first_called_at: float | None = None
        self.cut_off_until = 0.0
        self.stalled_until = 0.0
        self.disk_full_until = 0.0
        self.is_stuck = False
        self.written_off = False
        self.was_taken = self.was_noticed = self.was_forgotten = self.switched_off = False
        self.troubles: list[tuple[float, float]] = []
        self.mount_was_lost = False
        self.acknowledged: dict[int, float] = {}  # the seq of a checkpoint message → when it was acknowledged
        self._stopping_life = 0
        self._outcome: dict[str, Any] = {"interrupted": True}
        self._life = 0  # of the agent: what an earlier one meant to do is void
        self._retry_s = RETRY_S[0]
        self._connecting = 0
        self._frames: list[dict[str, Any]] = []
        self.name = f"{key[0]}/{key[1]}/g{key[2]}r{rank}"

    # --- what the world does ------------------------------------------------------------------------------

    def boot(self) -> None:
        if self.is_on and not self.is_stuck:
            self.start_agent()

    def start_agent(self) -> None:
        if self.is_on and not self.agent_up and not self.written_off:
            self.agent_up, self._life = True, self._life + 1
            self._soon(self._connect, 0.0)
            self._soon(self._beat, BEAT_S)
            self.see_notice()
            if self.disk.report.phase == "mounting":
                self._soon(self._mounted, 0.5)
            if self.disk.report.phase == "flushing":
                self._soon(self._flushed, 0.5)
            self._walk()

    def power_lost(self) -> None:
        """The machine is gone, with all that ran on it."""
        if not self.is_on:
            return
        self.is_on = self.agent_up = False
        self._kill_program()
        if self.link is not None:
            self.link.hang_up() if self.rng.random() < 0.7 else self.link.sever()
        self.world.peer_died(self)

    def crash_agent(self) -> None:
        """The agent dies; its machine starts it again. The workload does not notice."""
        if self.agent_up:
            self.agent_up = False
            down_s = self.rng.uniform(0.2, 4)
            self._in_trouble(down_s)
            if self.link is not None:
                self.link.cut()
                self.link = None
            self.world.scheduler.after(down_s, self.start_agent)

    def vanish(self) -> None:
        """The agent is gone for good; the workload goes on."""
        if self.agent_up:
            self.agent_up = False
            self.is_stuck = True
            self._in_trouble(FOREVER)
            if self.link is not None:
                self.link.sever()
                self.link = None

    def stall(self, seconds: float) -> None:
        self.stalled_until = self.world.scheduler.now() + seconds
        self._in_trouble(seconds)

    def cut_off(self, seconds: float) -> None:
        """No way to the controller for a while."""
        self.cut_off_until = self.world.scheduler.now() + seconds
        self._in_trouble(seconds)
        if self.link is not None:
            self.link.sever()

    def sever_link(self) -> None:
        """The connection is dead, and nobody is told."""
        self._in_trouble(PATIENCE_S)
        if self.link is not None:
            self.link.sever()

    def longest_trouble(self, now: float) -> float:
        """Seconds of the longest time so far in which it could not speak with any controller."""
        return max((min(until, now) - since for since, until in _joined(self.troubles)), default=0.0)

    def lose_mount(self) -> None:
        self.mount_was_lost = True
        if self.agent_up and self.disk.prepared and not self.disk.ended:
            self._say_report(mount_lost=True, message="lost the mount")

    def repeat(self, count: int) -> None:
        """Say things again, in any order."""
        link = self.link
        if self.agent_up and link is not None and link.welcomed:
            for _ in range(count):
                if self._frames:
                    link.say(self.rng.choice(self._frames))
            if self.disk.log and link.sent_log:
                begin = self.rng.randrange(link.sent_log)
                link.say_bytes(json.dumps({"offset": begin}).encode() + b"\n" + self.disk.log[begin : link.sent_log])

    def see_notice(self) -> None:
        """What the metadata service says, asked in a moment."""
        self._soon(self._read_notice, POLL_S)

    # --- the agent: time, connection ---------------------------------------------------------------------

    def _soon(self, do: Any, seconds: float, *args: Any) -> None:
        """`do` in a while, if this agent still lives then, and once it is not stalled."""
        self.world.scheduler.after(seconds, self._as_agent, self._life, do, args)

    def _as_agent(self, life: int, do: Any, args: tuple[Any, ...]) -> None:
        if not self.agent_up or life != self._life:
            return
        if self.stalled_until > self.world.scheduler.now():
            self.world.scheduler.at(self.stalled_until, self._as_agent, life, do, args)
        else:
            do(*args)

    def _connect(self) -> None:
        if self.link is not None or self.written_off:
            return
        process = self.world.front(self.rng)
        if process is None or self.cut_off_until > self.world.scheduler.now():
            self._call_again()
            return
        self._connecting += 1
        process.at(self.world.scheduler.now() + self.rng.uniform(0.002, 0.06), self._called, process, self._life)
        self._soon(self._gave_up, 10.0, self._connecting)

    def _call_again(self) -> None:
        self._soon(self._connect, self._retry_s * self.rng.uniform(0.5, 1))
        self._retry_s = min(RETRY_S[1], self._retry_s * 2)

    def _gave_up(self, attempt: int) -> None:
        if attempt == self._connecting and self.link is None:
            self._call_again()

    def _called(self, process: Process, life: int) -> None:
        """In the controller: the spec, and the upgrade to a channel."""
        answer = process.answer_call(self, self._token, with_spec=self.disk.spec is None)
        self.world.scheduler.after(self.rng.uniform(0.002, 0.06), self._as_agent, life, self._answered, (answer,))

    def _answered(self, answer: Answer | None) -> None:
        self._connecting += 1
        self.first_called_at = self.first_called_at or self.world.scheduler.now()
        if answer is None:
            self._call_again()
            return
        spec, link = answer
        if link is None:
            self._write_off()
            return
        if self.link is not None:
            link.cut()
            return
        if not link.node_open:  # it was over before it was known to be there
            self._call_again()
            return
        if spec is not None:
            self.disk.spec = spec
            self.world.judge.got_spec(self, spec)
        self.link = link
        hello = {"type": "hello", "report": asdict(self.disk.report), "logs": {"size": len(self.disk.log)}}
        link.say({**hello, "agent": "sim", "at": self._clock.now()})
        if self.disk.notice:
            self._say({"type": "notice", **self.disk.notice})
        self._walk()

    def link_ended(self, link: Link) -> None:
        """A connection is known to be over."""
        link.hang_up()
        if self.link is link:
            self.link = None
            self._soon(self._connect, RETRY_S[0] * self.rng.uniform(0.5, 1))

    def hears(self, link: Link, text: str) -> None:
        if self.link is link:
            self._as_agent(self._life, self._hear, (link, json.loads(text)))

    def _hear(self, link: Link, message: dict[str, Any]) -> None:
        match message["type"]:
            case "welcome":
                link.welcomed, self._retry_s = True, RETRY_S[0]
                link.sent_log = message["log_offset"]
                self._ship()
                for checkpoint in self.disk.checkpoints[message["checkpoint_seq"] :]:
                    self._say(checkpoint)
                self._direct(Directive.parse(message["directive"]))
            case "checkpoint_ack":
                self.acknowledged.setdefault(message["seq"], self.world.scheduler.now())
            case "directive":
                self._direct(Directive.parse(message["directive"]))

    def _say(self, message: dict[str, Any]) -> None:
        if self.link is not None:
            self.link.say(message)
        if message["type"] != "beat":
            self._frames = [*self._frames[-8:], message]

    def _say_report(self, **changes: Any) -> None:
        changed = replace(self.disk.report, **changes)
        if changed != self.disk.report:
            self.disk.report = changed
            self._say({"type": "report", **asdict(changed), "logs": {"size": len(self.disk.log)}})

    def _beat(self) -> None:
        if self.link is not None and self.world.scheduler.now() - self.link.last_sent >= BEAT_S - 0.1:
            self.link.say({"type": "beat", "at": self._clock.now()})
        self._soon(self._beat, BEAT_S)

    def _ship(self) -> None:
        """Have the log's new bytes sent, in a while."""
        link = self.link
        if link is not None and link.welcomed and not link.shipping and link.sent_log < len(self.disk.log):
            link.shipping = True
            self._soon(self._ship_now, self.rng.uniform(0, self.world.scenario.log_lag_s), link)

    def _ship_now(self, link: Link) -> None:
        link.shipping = False
        begin, data = link.sent_log, bytes(self.disk.log[link.sent_log :])
        if self.link is link and data:
            link.say_bytes(json.dumps({"offset": begin}).encode() + b"\n" + data)
            link.sent_log = begin + len(data)

    # --- the agent: orders -------------------------------------------------------------------------------

    def _direct(self, newer: Directive) -> None:
        following = self.disk.directive.followed_by(newer)
        if following != self.disk.directive:
            self.disk.directive = following
            if following.reaches("drain"):
                self.disk.drain_began = self.disk.drain_began or self._clock.now()
            self.world.tell(self.name, f"is told {following.want}")
            self._walk()

    def _read_notice(self) -> None:
        deadline = self.world.clouds[self.cloud].notice(self.machine_id) if self.is_on else None
        if deadline is None or self.disk.notice is not None:
            return
        self.disk.notice = {"deadline": deadline, "action": "terminate", "source": "sim"}
        self._say({"type": "notice", **self.disk.notice})
        self._soon(self._unanswered, UNANSWERED_S)

    def _unanswered(self) -> None:
        if not self.disk.directive.reaches("drain"):
            self._direct(replace(self.disk.directive, want="drain", deadline=None, reason="notice"))

    def _write_off(self) -> None:
        self.written_off = True
        self._walk()

    def _grace_s(self) -> float:
        """How long the workload may still take, so that flushing has its time."""
        assert self.disk.spec is not None
        now = self._clock.now()
        told = [self.disk.directive.deadline, self.disk.notice["deadline"] if self.disk.notice else None]
        known = [at for at in told if at is not None]
        deadline = min(known) if known else (self.disk.drain_began or now) + float(self.disk.spec["drain_s"])
        left = deadline - now
        return left - min(2.0, left / 2)

    def _in_trouble(self, seconds: float) -> None:
        now = self.world.scheduler.now()
        self.troubles.append((now, now + seconds))


def _joined(spans: list[tuple[float, float]], gap_s: float = 15.0) -> list[tuple[float, float]]:
    """Spans that follow closely upon one another, as one."""
    joined: list[tuple[float, float]] = []
    for since, until in sorted(spans):
        if joined and since <= joined[-1][1] + gap_s:
            joined[-1] = (joined[-1][0], max(joined[-1][1], until))
        else:
            joined.append((since, until))
    return joined
