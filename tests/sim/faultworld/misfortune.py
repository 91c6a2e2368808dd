"""What each kind of fault does to the world. A new kind: a line in `scenario.FAULTS`, and a function here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from faultworld.scenario import Fault

if TYPE_CHECKING:
    from faultworld.nodes import Node
    from faultworld.process import Process
    from faultworld.world import World

Strike = Callable[["World", Fault], bool]
STRIKES: dict[str, Strike] = {}
MOST_CONTROLLERS = 5


def strike(world: World, fault: Fault) -> None:
    """Let it happen, and count it if it met anything."""
    if STRIKES[fault.kind](world, fault):
        world.met[fault.kind] += 1


def _of(kind: str) -> Callable[[Strike], Strike]:
    def register(strike: Strike) -> Strike:
        STRIKES[kind] = strike
        return strike

    return register


def on_node(kind: str, which: Callable[[Node], bool], what: str, do: Callable[[World, Node, Fault], object]) -> None:
    """A fault that one node meets, out of those for which `which` holds."""

    def meet(world: World, fault: Fault) -> bool:
        met = sorted((n for n in world.nodes.values() if n.is_on and which(n)), key=lambda n: n.machine_id)
        if not met:
            return False
        node = met[fault.pick % len(met)]
        world.tell(node.name, what.format(amount=fault.amount))
        do(world, node, fault)
        return True

    STRIKES[kind] = meet


def _take(how: str) -> Callable[[World, Node, Fault], None]:
    def take(world: World, node: Node, fault: Fault) -> None:
        node.was_taken, node.was_forgotten = True, how == "forget"
        world.clouds[node.cloud].take(node.machine_id, how)

    return take


def _notice(world: World, node: Node, fault: Fault) -> None:
    node.was_taken = node.was_noticed = True
    world.clouds[node.cloud].take(node.machine_id, "preempt", max(0.3, fault.amount))
    node.see_notice()


def _stick(world: World, node: Node, fault: Fault) -> None:
    node.is_stuck = True


def _fill_disk(world: World, node: Node, fault: Fault) -> None:
    node.disk_full_until = world.scheduler.now() + fault.amount


on_node("preempt", lambda n: True, "is taken at once", _take("preempt"))
on_node("crash", lambda n: True, "crashes", _take("crash"))
on_node("forget", lambda n: True, "goes, and its cloud never heard of it", _take("forget"))
on_node("notice", lambda n: True, "will be taken in {amount} s", _notice)
on_node("late-notice", lambda n: True, "will be taken in {amount} s", _notice)
on_node("stuck-boot", lambda n: n.first_called_at is None and not n.agent_up, "never boots", _stick)
on_node("break", lambda n: n.link is not None, "loses its connection", lambda w, n, f: n.link and n.link.cut())
on_node(
    "half-open", lambda n: n.link is not None, "is heard no more, and hears nothing", lambda w, n, f: n.sever_link()
)
on_node("partition", lambda n: True, "is cut off for {amount} s", lambda w, n, f: n.cut_off(f.amount))
on_node("agent-crash", lambda n: n.agent_up, "its agent crashes", lambda w, n, f: n.crash_agent())
on_node("agent-stall", lambda n: n.agent_up, "its agent stalls for {amount} s", lambda w, n, f: n.stall(f.amount))
on_node("agent-vanish", lambda n: n.agent_up, "its agent is gone, its workload is not", lambda w, n, f: n.vanish())
on_node("repeat", lambda n: n.link is not None, "says things again", lambda w, n, f: n.repeat(int(f.amount)))
on_node("disk-full", lambda n: True, "its disk is full for {amount} s", _fill_disk)
on_node("mount-lost", lambda n: n.disk.prepared, "its mount goes away", lambda w, n, f: n.lose_mount())


# --- clouds -------------------------------------------------------------------------------------------


@_of("capacity")
def _capacity(world: World, fault: Fault) -> bool:
    return _refuse(world, fault, "NoCapacity")


@_of("quota")
def _quota(world: World, fault: Fault) -> bool:
    return _refuse(world, fault, "QuotaExceeded")


def _refuse(world: World, fault: Fault, code: str) -> bool:
    cloud = _cloud(world, fault)
    zones = ("fake-1a", "fake-1b", "fake-2a")
    zone = zones[fault.pick // 7 % len(zones)]
    world.tell(cloud.name, f"answers {code} in {zone} for {fault.amount} s")
    cloud.faults.refuse[zone] = code
    world.scheduler.after(fault.amount, cloud.faults.refuse.pop, zone, None)
    return True


@_of("throttle")
def _throttle(world: World, fault: Fault) -> bool:
    cloud = _cloud(world, fault)
    cloud.faults.throttle += int(fault.amount)
    world.tell(cloud.name, f"throttles the next {int(fault.amount)} calls")
    return True


@_of("lost-answers")
def _lost_answers(world: World, fault: Fault) -> bool:
    cloud = _cloud(world, fault)
    cloud.lost_answers += int(fault.amount)
    world.tell(cloud.name, f"loses its next {int(fault.amount)} answers")
    return True


@_of("partial-launch")
def _partial_launch(world: World, fault: Fault) -> bool:
    cloud = _cloud(world, fault)
    cloud.faults.broken_launches.append(int(fault.amount))
    world.tell(cloud.name, f"breaks the next launch after {int(fault.amount)} machine(s)")
    return True


@_of("outage")
def _outage(world: World, fault: Fault) -> bool:
    cloud = _cloud(world, fault)
    cloud.outage_until = world.scheduler.now() + fault.amount
    cloud.outage_takes_effect = fault.pick % 2 == 1
    world.tell(cloud.name, f"answers nobody for {fault.amount} s{', but acts' if cloud.outage_takes_effect else ''}")
    return True


@_of("stale-list")
def _stale_list(world: World, fault: Fault) -> bool:
    cloud = _cloud(world, fault)
    cloud.go_stale(fault.amount)
    world.tell(cloud.name, f"lists what was there now for {fault.amount} s")
    return True


@_of("price")
def _price(world: World, fault: Fault) -> bool:
    cloud = _cloud(world, fault)
    cloud.change_prices(fault.amount)
    world.tell(cloud.name, f"changes its prices by a factor of {fault.amount}")
    return True


def _cloud(world: World, fault: Fault):  # type: ignore[no-untyped-def]
    names = sorted(world.clouds)
    return world.clouds[names[fault.pick % len(names)]]


# --- controllers and their database -----------------------------------------------------------------------


def _process(world: World, fault: Fault) -> Process | None:
    """The controller that meets a fault."""
    serving = world.living()
    return serving[fault.pick % len(serving)] if serving else None


@_of("kill")
def _kill(world: World, fault: Fault) -> bool:
    return _doom(world, fault, fault.amount)


@_of("take-over")
def _take_over(world: World, fault: Fault) -> bool:
    """Nobody starts it again: its jobs are the others'."""
    return _doom(world, fault, None if world.is_shared else fault.amount)


def _doom(world: World, fault: Fault, then_s: float | None) -> bool:
    """It dies at one of the next points, and is followed after `then_s` seconds."""
    process = _process(world, fault)
    if process is None:
        return False
    process.doom, process.then_s = 1 + fault.pick % 25, then_s
    return True


@_of("join")
def _join(world: World, fault: Fault) -> bool:
    if not world.is_shared or len(world.living()) >= MOST_CONTROLLERS:
        return False
    world.start_process()
    return True


@_of("stop")
def _stop(world: World, fault: Fault) -> bool:
    process = _process(world, fault)
    if process is None:
        return False
    process.then_s = fault.amount
    process.at(world.scheduler.now(), _stop_now, world, process)
    return True


def _stop_now(world: World, process: Process) -> None:
    world.tell(process.name, "is stopped")
    process.stop()


@_of("freeze")
def _freeze(world: World, fault: Fault) -> bool:
    """It stands still at one of the next points, perhaps within a transaction. Later it goes on, knowing nothing."""
    process = _process(world, fault)
    if process is None or process.standstill is not None:
        return False
    process.standstill = (1 + fault.pick % 25, fault.amount)
    return True


@_of("database-cut")
def _database_cut(world: World, fault: Fault) -> bool:
    process = _process(world, fault)
    if process is None:
        return False
    process.cut_off_until = world.scheduler.now() + fault.amount
    world.tell(process.name, f"has no way to the database for {fault.amount} s")
    return True


@_of("notices-lost")
def _notices_lost(world: World, fault: Fault) -> bool:
    if not world.is_shared:
        return False
    world.notices_lost_until = world.scheduler.now() + fault.amount
    world.tell("database", f"tells nobody of anything for {fault.amount} s")
    return True


@_of("database")
def _database(world: World, fault: Fault) -> bool:
    moment = ("begin", "commit")[fault.pick % 2]
    world.database_troubles += [moment] * int(fault.amount)
    world.tell("database", f"fails at the next {int(fault.amount)} ({moment})")
    return True


@_of("commit-lost")
def _commit_lost(world: World, fault: Fault) -> bool:
    world.database_troubles += ["committed"] * int(fault.amount)
    world.tell("database", f"commits, and loses the answer, {int(fault.amount)} times")
    return True


@_of("database-down")
def _database_down(world: World, fault: Fault) -> bool:
    world.database_down_until = world.scheduler.now() + fault.amount
    world.tell("database", f"is down for {fault.amount} s")
    return True


@_of("buckets")
def _buckets(world: World, fault: Fault) -> bool:
    world.buckets.broken_until = world.scheduler.now() + fault.amount
    world.tell("buckets", f"can not be reached for {fault.amount} s")
    return True
