"""Injects faults into the world. A new kind of fault needs a line in `scenario.FAULTS` and a function here."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from faultworld.hostile_frames import invalid_frame
from faultworld.scenario import Fault

if TYPE_CHECKING:
    from faultworld.clouds import FaultyCloud
    from faultworld.nodes import Node
    from faultworld.process import Process
    from faultworld.world import World

# Injects a fault. Returns whether it has an effect.
Injector = Callable[["World", Fault], bool]
INJECTORS: dict[str, Injector] = {}
MAX_CONTROLLERS = 5


def inject(world: World, fault: Fault) -> None:
    """Inject the fault, and count it if it had an effect."""
    if INJECTORS[fault.kind](world, fault):
        world.fault_counts[fault.kind] += 1


def _injector(kind: str) -> Callable[[Injector], Injector]:
    def register(injector: Injector) -> Injector:
        INJECTORS[kind] = injector
        return injector

    return register


def _node_fault(
    kind: str, is_candidate: Callable[[Node], bool], text: str, do: Callable[[World, Node, Fault], object]
) -> None:
    """Register a fault of one node among the candidates. `text` describes it in the trace."""

    def inject_into_node(world: World, fault: Fault) -> bool:
        candidates = sorted(
            (n for n in world.nodes.values() if n.is_on and is_candidate(n)), key=lambda n: n.machine_id
        )
        if not candidates:
            return False
        node = candidates[fault.pick % len(candidates)]
        world.record(node.name, text.format(amount=fault.amount))
        do(world, node, fault)
        return True

    INJECTORS[kind] = inject_into_node


def _end_machine(how: str) -> Callable[[World, Node, Fault], None]:
    def end_machine(world: World, node: Node, fault: Fault) -> None:
        node.was_ended_by_fault, node.was_forgotten = True, how == "forget"
        world.clouds[node.cloud].end_machine(node.machine_id, how)

    return end_machine


def _notice(world: World, node: Node, fault: Fault) -> None:
    node.was_ended_by_fault = node.had_notice = True
    world.clouds[node.cloud].end_machine(node.machine_id, "preempt", max(0.3, fault.amount))
    node.poll_notice()


def _is_machine(node: Node) -> bool:
    return node.is_machine


def _stop_boot(world: World, node: Node, fault: Fault) -> None:
    node.is_stuck = True


def _send_hostile(world: World, node: Node, fault: Fault) -> None:
    """Only frames that break the protocol: a job may lie about itself, and ends as it says."""
    rng = random.Random(f"{world.scenario.seed}:hostile:{fault.at}:{fault.pick}")
    for _ in range(int(fault.amount)):
        node.send_hostile(invalid_frame(rng))


def _send_false_notices(world: World, node: Node, fault: Fault) -> None:
    """From now on, every node of the task announces its preemption as soon as it is connected."""
    until, (job, task, _) = world.scheduler.now() + fault.amount, node.key

    def lie() -> None:
        now = world.scheduler.now()
        for other in list(world.nodes.values()):
            link = other.link
            if other.key[:2] == (job, task) and link is not None and link.is_welcomed and not other.had_notice:
                other.had_notice = True
                world.record(other.name, "sends a false notice")
                other.send_hostile(
                    json.dumps({"type": "notice", "action": "terminate", "deadline": now + 30, "at": now})
                )
        if now < until:
            world.scheduler.after(1.5, lie)

    lie()


def _fill_disk(world: World, node: Node, fault: Fault) -> None:
    node.disk_full_until = world.scheduler.now() + fault.amount


_node_fault("preempt", _is_machine, "is preempted without notice", _end_machine("preempt"))
_node_fault("crash", _is_machine, "crashes", _end_machine("crash"))
_node_fault("forget", _is_machine, "ends, and its cloud has no record of it", _end_machine("forget"))
_node_fault("notice", _is_machine, "will be preempted in {amount} s", _notice)
_node_fault("late-notice", _is_machine, "will be preempted in {amount} s", _notice)
_node_fault(
    "stuck-boot", lambda n: n.is_machine and n.first_called_at is None and not n.agent_up, "never boots", _stop_boot
)
_node_fault("disconnect", lambda n: n.link is not None, "loses its connection", lambda w, n, f: n.disconnect())
_node_fault(
    "half-open", lambda n: n.link is not None, "loses all frames in both directions", lambda w, n, f: n.blackhole_link()
)
_node_fault("partition", lambda n: True, "is cut off for {amount} s", lambda w, n, f: n.cut_off(f.amount))
_node_fault("agent-crash", lambda n: n.agent_up, "its agent crashes", lambda w, n, f: n.crash_agent())
_node_fault("agent-stall", lambda n: n.agent_up, "its agent stalls for {amount} s", lambda w, n, f: n.stall(f.amount))
_node_fault(
    "agent-vanish",
    lambda n: n.agent_up,
    "its agent ends for good, but its workload runs on",
    lambda w, n, f: n.vanish(),
)
_node_fault(
    "repeat", lambda n: n.link is not None, "repeats messages", lambda w, n, f: n.repeat_messages(int(f.amount))
)
_node_fault("hostile-frame", lambda n: n.link is not None and n.link.is_welcomed, "sends hostile frames", _send_hostile)
_node_fault(
    "false-notices",
    lambda n: n.link is not None and n.link.is_welcomed,
    "its job sends false notices for {amount} s",
    _send_false_notices,
)
_node_fault("disk-full", lambda n: True, "its disk is full for {amount} s", _fill_disk)
_node_fault("mount-lost", lambda n: n.disk.prepared, "loses its mount", lambda w, n, f: n.lose_mount())


# --- clouds -------------------------------------------------------------------------------------------


@_injector("capacity")
def _capacity(world: World, fault: Fault) -> bool:
    return _fail_launches(world, fault, "NoCapacity")


@_injector("quota")
def _quota(world: World, fault: Fault) -> bool:
    return _fail_launches(world, fault, "QuotaExceeded")


def _fail_launches(world: World, fault: Fault, code: str) -> bool:
    cloud = _cloud(world, fault)
    zones = ("fake-1a", "fake-1b", "fake-2a")
    zone = zones[fault.pick // 7 % len(zones)]
    world.record(cloud.name, f"responds with {code} in {zone} for {fault.amount} s")
    cloud.faults.launch_errors[zone] = code
    world.scheduler.after(fault.amount, cloud.faults.launch_errors.pop, zone, None)
    return True


@_injector("throttle")
def _throttle(world: World, fault: Fault) -> bool:
    cloud = _cloud(world, fault)
    cloud.faults.throttle += int(fault.amount)
    world.record(cloud.name, f"throttles the next {int(fault.amount)} calls")
    return True


@_injector("lost-answers")
def _lost_answers(world: World, fault: Fault) -> bool:
    cloud = _cloud(world, fault)
    cloud.lost_answers += int(fault.amount)
    world.record(cloud.name, f"loses its next {int(fault.amount)} responses")
    return True


@_injector("partial-launch")
def _partial_launch(world: World, fault: Fault) -> bool:
    cloud = _cloud(world, fault)
    cloud.faults.broken_launches.append(int(fault.amount))
    world.record(cloud.name, f"breaks the next launch after {int(fault.amount)} machine(s)")
    return True


@_injector("outage")
def _outage(world: World, fault: Fault) -> bool:
    cloud = _cloud(world, fault)
    cloud.outage_until = world.scheduler.now() + fault.amount
    cloud.outage_takes_effect = fault.pick % 2 == 1
    world.record(
        cloud.name, f"does not respond for {fault.amount} s{', but acts' if cloud.outage_takes_effect else ''}"
    )
    return True


@_injector("stale-list")
def _stale_list(world: World, fault: Fault) -> bool:
    cloud = _cloud(world, fault)
    cloud.serve_stale_listings(fault.amount)
    world.record(cloud.name, f"returns the listing of now for {fault.amount} s")
    return True


@_injector("price")
def _price(world: World, fault: Fault) -> bool:
    cloud = _cloud(world, fault)
    cloud.change_prices(fault.amount)
    world.record(cloud.name, f"changes its prices by a factor of {fault.amount}")
    return True


def _cloud(world: World, fault: Fault) -> FaultyCloud:
    """The cloud that the fault hits."""
    names = sorted(world.clouds)
    return world.clouds[names[fault.pick % len(names)]]


# --- controllers and their database -----------------------------------------------------------------------


def _process(world: World, fault: Fault) -> Process | None:
    """The controller that the fault hits."""
    serving = world.serving_processes()
    return serving[fault.pick % len(serving)] if serving else None


@_injector("kill")
def _kill(world: World, fault: Fault) -> bool:
    return _kill_later(world, fault, fault.amount)


@_injector("take-over")
def _take_over(world: World, fault: Fault) -> bool:
    """The controller is not started again: other ones take over its jobs."""
    return _kill_later(world, fault, None if world.is_shared else fault.amount)


def _kill_later(world: World, fault: Fault, restart_after_s: float | None) -> bool:
    """The controller dies at one of its next failpoints. Another one starts `restart_after_s` seconds later."""
    process = _process(world, fault)
    if process is None:
        return False
    process.kill_after, process.restart_after_s = 1 + fault.pick % 25, restart_after_s
    return True


@_injector("join")
def _join(world: World, fault: Fault) -> bool:
    if not world.is_shared or len(world.serving_processes()) >= MAX_CONTROLLERS:
        return False
    world.start_process()
    return True


@_injector("stop")
def _stop(world: World, fault: Fault) -> bool:
    process = _process(world, fault)
    if process is None:
        return False
    process.restart_after_s = fault.amount
    process.at(world.scheduler.now(), _stop_now, world, process)
    return True


def _stop_now(world: World, process: Process) -> None:
    world.record(process.name, "is stopped")
    process.stop()


@_injector("freeze")
def _freeze(world: World, fault: Fault) -> bool:
    """The controller freezes at one of its next failpoints, perhaps within a transaction, and continues later."""
    process = _process(world, fault)
    if process is None or process.freeze_after is not None:
        return False
    process.freeze_after = (1 + fault.pick % 25, fault.amount)
    return True


@_injector("database-partition")
def _database_partition(world: World, fault: Fault) -> bool:
    process = _process(world, fault)
    if process is None:
        return False
    process.cut_off_until = world.scheduler.now() + fault.amount
    world.record(process.name, f"cannot reach the database for {fault.amount} s")
    return True


@_injector("notifications-lost")
def _notifications_lost(world: World, fault: Fault) -> bool:
    if not world.is_shared:
        return False
    world.notifications_lost_until = world.scheduler.now() + fault.amount
    world.record("database", f"sends no notifications for {fault.amount} s")
    return True


@_injector("database-errors")
def _database_errors(world: World, fault: Fault) -> bool:
    moment = ("begin", "commit")[fault.pick % 2]
    world.pending_database_failures += [moment] * int(fault.amount)
    world.record("database", f"fails the next {int(fault.amount)} times at {moment}")
    return True


@_injector("commit-lost")
def _commit_lost(world: World, fault: Fault) -> bool:
    world.pending_database_failures += ["committed"] * int(fault.amount)
    world.record("database", f"loses the response to the next {int(fault.amount)} commits")
    return True


@_injector("database-down")
def _database_down(world: World, fault: Fault) -> bool:
    world.database_down_until = world.scheduler.now() + fault.amount
    world.record("database", f"is down for {fault.amount} s")
    return True


@_injector("bucket-outage")
def _bucket_outage(world: World, fault: Fault) -> bool:
    world.buckets.unavailable_until = world.scheduler.now() + fault.amount
    world.record("buckets", f"cannot be reached for {fault.amount} s")
    return True
