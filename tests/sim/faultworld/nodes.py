"""A machine with an agent. It speaks the agent protocol, has a disk, and follows the rules of perdure.agent.

Messages are the JSON of the protocol. Pure code of the agent is used as it is: the order of directives, and the report.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from faultworld.disk import Disk
from faultworld.network import IDLE_TIMEOUT_S, Link
from faultworld.node_lifecycle import NodeLifecycle
from faultworld.virtual_time import SkewedClock
from faultworld.workload import Program
from perdure.agent.state_file import Directive
from perdure.controller.runtime.keys import AttemptKey

if TYPE_CHECKING:
    from faultworld.process import ConnectAnswer, Process
    from faultworld.world import World

POLL_INTERVAL_S, RETRY_RANGE_S, HEARTBEAT_INTERVAL_S = 0.1, (0.2, 5.0), 4.5
# A node that has reported a notice drains on its own if it receives no directive within this time.
NOTICE_ANSWER_TIMEOUT_S = 1.0
FOREVER = float("inf")


class Node(NodeLifecycle):
    """One machine. The world and the connection call its public methods."""

    is_machine = True  # of a cloud

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
        self.first_called_at: float | None = None
        self.cut_off_until = 0.0
        self.stalled_until = 0.0
        self.disk_full_until = 0.0
        self.is_stuck = False  # it never boots, or its agent has ended for good
        self.token_revoked = False
        self.was_ended_by_fault = False
        self.had_notice = False
        self.was_forgotten = False  # by its cloud
        self.powered_itself_off = False
        self.mount_was_lost = False
        self.outages: list[tuple[float, float]] = []  # (start, end) of each time without communication
        self.acknowledged: dict[int, float] = {}  # the seq of a checkpoint message → when it was acknowledged
        self._stopping_incarnation = 0
        self._outcome: dict[str, Any] = {"interrupted": True}
        self._incarnation = 0  # of the agent: the scheduled calls of an earlier one are dropped
        self._retry_s = RETRY_RANGE_S[0]
        self._connect_attempt = 0
        self._recent_messages: list[dict[str, Any]] = []
        self.name = f"{key[0]}/{key[1]}/g{key[2]}r{rank}"

    # --- called by the world ------------------------------------------------------------------------------

    def boot(self) -> None:
        if self.is_on and not self.is_stuck:
            self.start_agent()

    def start_agent(self) -> None:
        if self.is_on and not self.agent_up and not self.token_revoked:
            self.agent_up, self._incarnation = True, self._incarnation + 1
            self._schedule(self._connect, 0.0)
            self._schedule(self._send_heartbeat, HEARTBEAT_INTERVAL_S)
            self.poll_notice()
            if self.disk.report.phase == "mounting":
                self._schedule(self._mounted, 0.5)
            if self.disk.report.phase == "flushing":
                self._schedule(self._flushed, 0.5)
            self._advance()

    def lose_power(self) -> None:
        """The machine ends, with everything that runs on it."""
        if not self.is_on:
            return
        self.is_on = self.agent_up = False
        self._kill_program()
        if self.link is not None:
            self.link.close_by_node() if self.rng.random() < 0.7 else self.link.blackhole()
        self.world.fail_peers_of(self)

    def crash_agent(self) -> None:
        """The agent dies, and the machine starts it again. The workload is not affected."""
        if self.agent_up:
            self.agent_up = False
            down_s = self.rng.uniform(0.2, 4)
            self._add_outage(down_s)
            if self.link is not None:
                self.link.disconnect()
                self.link = None
            self.world.scheduler.after(down_s, self.start_agent)

    def vanish(self) -> None:
        """The agent ends for good, and the workload runs on."""
        if self.agent_up:
            self.agent_up = False
            self.is_stuck = True
            self._add_outage(FOREVER)
            if self.link is not None:
                self.link.blackhole()
                self.link = None

    def stall(self, seconds: float) -> None:
        """The agent does nothing for a while. The workload is not affected."""
        self.stalled_until = self.world.scheduler.now() + seconds
        self._add_outage(seconds)

    def cut_off(self, seconds: float) -> None:
        """Cut the node off from all controllers for a while."""
        self.cut_off_until = self.world.scheduler.now() + seconds
        self._add_outage(seconds)
        if self.link is not None:
            self.link.blackhole()

    def disconnect(self) -> None:
        """The connection breaks."""
        if self.link is not None:
            self.link.disconnect()

    def blackhole_link(self) -> None:
        """The connection loses all frames without an error."""
        self._add_outage(IDLE_TIMEOUT_S)
        if self.link is not None:
            self.link.blackhole()

    def max_outage_s(self, now: float) -> float:
        """The longest time so far in which it could not communicate with any controller, in seconds."""
        return max((min(until, now) - since for since, until in _join_spans(self.outages)), default=0.0)

    def lose_mount(self) -> None:
        self.mount_was_lost = True
        if self.agent_up and self.disk.prepared and not self.disk.ended:
            self._send_report(mount_lost=True, message="lost the mount")

    def repeat_messages(self, count: int) -> None:
        """Send old messages and old log bytes again, in any order."""
        link = self.link
        if self.agent_up and link is not None and link.is_welcomed:
            for _ in range(count):
                if self._recent_messages:
                    link.send(self.rng.choice(self._recent_messages))
            if self.disk.log and link.sent_log_bytes:
                begin = self.rng.randrange(link.sent_log_bytes)
                link.send_bytes(_log_frame(begin, self.disk.log[begin : link.sent_log_bytes]))

    def send_hostile(self, frame: str | bytes) -> None:
        """The job's program sends a frame with its node's token."""
        if self.link is not None:
            if isinstance(frame, bytes):
                self.link.send_bytes(frame)
            else:
                self.link.send_raw_text(frame)

    def poll_notice(self) -> None:
        """Poll the metadata service soon."""
        self._schedule(self._read_notice, POLL_INTERVAL_S)

    # --- the agent: time, connection ---------------------------------------------------------------------

    def _schedule(self, do: Callable[..., object], seconds: float, *args: Any) -> None:
        """Schedule a call, which is dropped if this agent dies, and delayed while it stalls."""
        self.world.scheduler.after(seconds, self._run_as_agent, self._incarnation, do, args)

    def _run_as_agent(self, incarnation: int, do: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self.agent_up or incarnation != self._incarnation:
            return
        if self.stalled_until > self.world.scheduler.now():
            self.world.scheduler.at(self.stalled_until, self._run_as_agent, incarnation, do, args)
        else:
            do(*args)

    def _connect(self) -> None:
        if self.link is not None or self.token_revoked:
            return
        process = self.world.choose_controller(self.rng)
        if process is None or self.cut_off_until > self.world.scheduler.now():
            self._retry_connect()
            return
        self._connect_attempt += 1
        process.after(self.rng.uniform(0.002, 0.06), self._call_controller, process, self._incarnation)
        self._schedule(self._on_connect_timeout, 10.0, self._connect_attempt)

    def _retry_connect(self) -> None:
        self._schedule(self._connect, self._retry_s * self.rng.uniform(0.5, 1))
        self._retry_s = min(RETRY_RANGE_S[1], self._retry_s * 2)

    def _on_connect_timeout(self, attempt: int) -> None:
        if attempt == self._connect_attempt and self.link is None:
            self._retry_connect()

    def _call_controller(self, process: Process, incarnation: int) -> None:
        """Runs in the controller: it serves the spec, and upgrades the connection to a WebSocket."""
        answer = process.serve_call(self, self._token, with_spec=self.disk.spec is None)
        latency_s = self.rng.uniform(0.002, 0.06)
        self.world.scheduler.after(latency_s, self._run_as_agent, incarnation, self._on_answer, (answer,))

    def _on_answer(self, answer: ConnectAnswer | None) -> None:
        self._connect_attempt += 1
        self.first_called_at = self.first_called_at or self.world.scheduler.now()
        if answer is None:
            self._retry_connect()
            return
        spec, link = answer
        if link is None:
            self._on_token_revoked()
            return
        if self.link is not None:
            link.disconnect()
            return
        if not link.is_open_at_node:  # the connection ended before its answer arrived
            self._retry_connect()
            return
        if spec is not None:
            self.disk.spec = spec
            self.world.invariants.on_node_spec(self, spec)
        self.link = link
        hello = {"type": "hello", "report": asdict(self.disk.report), "logs": {"size": len(self.disk.log)}}
        link.send({**hello, "agent": "sim", "at": self._clock.now()})
        if self.disk.notice:
            self._send({"type": "notice", **self.disk.notice})
        self._advance()

    def on_link_ended(self, link: Link) -> None:
        """The node has noticed the end of a connection."""
        link.close_by_node()
        if self.link is link:
            self.link = None
            self._schedule(self._connect, RETRY_RANGE_S[0] * self.rng.uniform(0.5, 1))

    def on_text(self, link: Link, text: str) -> None:
        if self.link is link:
            self._run_as_agent(self._incarnation, self._receive, (link, json.loads(text)))

    def _receive(self, link: Link, message: dict[str, Any]) -> None:
        match message["type"]:
            case "welcome":
                link.is_welcomed, self._retry_s = True, RETRY_RANGE_S[0]
                link.sent_log_bytes = message["log_offset"]
                self._schedule_log_upload()
                for checkpoint in self.disk.checkpoints[message["checkpoint_seq"] :]:
                    self._send(checkpoint)
                self._follow_directive(Directive.parse(message["directive"]))
            case "checkpoint_ack":
                self.acknowledged.setdefault(message["seq"], self.world.scheduler.now())
            case "directive":
                self._follow_directive(Directive.parse(message["directive"]))

    def _send(self, message: dict[str, Any]) -> None:
        if self.link is not None:
            self.link.send(message)
        if message["type"] != "heartbeat":
            self._recent_messages = [*self._recent_messages[-8:], message]

    def _send_report(self, **changes: Any) -> None:
        changed = replace(self.disk.report, **changes)
        if changed != self.disk.report:
            self.disk.report = changed
            self._send({"type": "report", **asdict(changed), "logs": {"size": len(self.disk.log)}})

    def _send_heartbeat(self) -> None:
        if self.link is not None and self.world.scheduler.now() - self.link.last_sent >= HEARTBEAT_INTERVAL_S - 0.1:
            self.link.send({"type": "heartbeat", "at": self._clock.now()})
        self._schedule(self._send_heartbeat, HEARTBEAT_INTERVAL_S)

    def _schedule_log_upload(self) -> None:
        """Schedule the sending of new log bytes."""
        link = self.link
        if link is None or not link.is_welcomed or link.log_upload_is_scheduled:
            return
        if link.sent_log_bytes < len(self.disk.log):
            link.log_upload_is_scheduled = True
            self._schedule(self._upload_log, self.rng.uniform(0, self.world.scenario.log_lag_s), link)

    def _upload_log(self, link: Link) -> None:
        link.log_upload_is_scheduled = False
        begin, data = link.sent_log_bytes, bytes(self.disk.log[link.sent_log_bytes :])
        if self.link is link and data:
            link.send_bytes(_log_frame(begin, data))
            link.sent_log_bytes = begin + len(data)

    # --- the agent: directives ----------------------------------------------------------------------------

    def _follow_directive(self, newer: Directive) -> None:
        following = self.disk.directive.followed_by(newer)
        if following != self.disk.directive:
            self.disk.directive = following
            if following.reaches("drain"):
                self.disk.drain_began = self.disk.drain_began or self._clock.now()
            self.world.record(self.name, f"follows the directive {following.target}")
            self._advance()

    def _read_notice(self) -> None:
        deadline = self.world.clouds[self.cloud].notice(self.machine_id) if self.is_on else None
        if deadline is None or self.disk.notice is not None:
            return
        self.disk.notice = {"deadline": deadline, "action": "terminate", "source": "sim"}
        self._send({"type": "notice", **self.disk.notice})
        self._schedule(self._on_notice_unanswered, NOTICE_ANSWER_TIMEOUT_S)

    def _on_notice_unanswered(self) -> None:
        if not self.disk.directive.reaches("drain"):
            self._follow_directive(replace(self.disk.directive, target="drain", deadline=None, reason="notice"))

    def _on_token_revoked(self) -> None:
        self.token_revoked = True
        self._advance()

    def _grace_s(self) -> float:
        """How long the workload may still run, so that there is time to flush."""
        assert self.disk.spec is not None
        now = self._clock.now()
        deadlines = [self.disk.directive.deadline, self.disk.notice["deadline"] if self.disk.notice else None]
        known = [at for at in deadlines if at is not None]
        deadline = min(known) if known else (self.disk.drain_began or now) + float(self.disk.spec["drain_s"])
        left = deadline - now
        return left - min(2.0, left / 2)

    def _add_outage(self, seconds: float) -> None:
        now = self.world.scheduler.now()
        self.outages.append((now, now + seconds))


def _log_frame(offset: int, data: bytes | bytearray) -> bytes:
    return json.dumps({"offset": offset}).encode() + b"\n" + data


def _join_spans(spans: list[tuple[float, float]], gap_s: float = 15.0) -> list[tuple[float, float]]:
    """Join the spans that have short gaps between them."""
    joined: list[tuple[float, float]] = []
    for since, until in sorted(spans):
        if joined and since <= joined[-1][1] + gap_s:
            joined[-1] = (joined[-1][0], max(joined[-1][1], until))
        else:
            joined.append((since, until))
    return joined
