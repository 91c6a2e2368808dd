"""Random walks of events through `step`: the worlds they start in, and the moves they make.

A walk is a seed, so that thousands take seconds. One that fails is shortened before it is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, nan
from random import Random

from perdure.recovery import events
from perdure.recovery.directive import Target, directive_for
from perdure.recovery.job import AttemptView, JobView, Recovery, TaskView
from perdure.recovery.market.cooldown import unavailable_after_launch
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.policies.registry import STRATEGIES
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase
from support.worlds.step_walk import NOW, OFFERS, Walk

# The job of a walk ends within this many answers of a cooperative world.
MAX_ANSWERS = 400


@dataclass(frozen=True)
class Move:
    """One random step of a walk.

    `task`: counted from the current one; `back`: how many generations ago; `n`: picks among what is possible.
    """

    kind: str
    wait_s: float = 0.0
    task: int = 0
    back: int = 0
    rank: int = 0
    n: int = 0


ANSWERS = ["storage", "launched", "refused", "gone"]
NODES = ["report", "silent", "notice", "seen", "lost", "saved"]
# Usual events are more likely, so that walks make progress.
TRUTHFUL = ["nothing", "cancel"] + ["cooperate"] * 60 + ["wake", "again"] * 8 + ["market"] * 2 + ANSWERS * 4 + NODES * 6
UNTRUTHFUL = TRUTHFUL + ["lie"] * 25


def random_world(seed: int) -> Walk:
    """A job that has just been submitted, of one to three tasks, to a market of five offers, one, or none."""
    chance = Random(f"world {seed}")
    recovery = Recovery(
        chance.choice(list(STRATEGIES)),
        chance.randint(0, 2),
        frozenset({42}),
        deadline_at=NOW + chance.choice([0.0, 9e3, 2e4, 1e5]),
        work_s=chance.choice([6e3, 5e4, None]),
        **random_limits(seed),
    )
    task = TaskView(0, (MachineRequirement(),), chance.choice([1, 1, 2, 3]), recovery, wake_at=NOW)
    task = replace(task, storage_ready=chance.random() < 0.5)
    following = [replace(task, index=1 + n, wake_at=None) for n in range(chance.choice([0, 0, 1, 2]))]
    return Walk(JobView(1, (task, *following)), offers=chance.choice([OFFERS] * 5 + [OFFERS[:1]] * 2 + [()]))


def random_limits(seed: int) -> dict[str, float]:
    """Limits of every third walk: they end or restart a task, which shortens its history."""
    chance = Random(f"limits {seed}")
    if seed % 3:
        return {}
    chosen = {"stuck_after_s": 300.0, "restart_when_stuck_s": 2000.0, "max_duration_s": 2e4, "max_cost": 3.0}
    return {name: value for name, value in chosen.items() if chance.random() < 0.5}


def random_moves(seed: int) -> list[Move]:
    """Of every two walks, one is truthful."""
    chance = Random(f"moves {seed}")
    kinds = TRUTHFUL if seed % 2 else UNTRUTHFUL
    return [
        Move(
            chance.choice(kinds),
            wait_s=chance.choice([0.0, 0.0, 0.1, 4.0, 61.0, 1000.0]),
            task=chance.choice([0, 0, 0, 1]),
            back=chance.choice([0, 0, 0, 0, 0, 1, 1, 2, -1]),
            rank=chance.choice([0, 0, 0, 1, 1, 2]),
            n=chance.randrange(1000),
        )
        for _ in range(chance.randint(20, 80))
    ]


def walk_through(seed: int, check_end: Callable[[Walk], None] = lambda _: None) -> Walk:
    """The walk of `seed` after all of its moves and `check_end`. A failure names the fewest moves that cause it."""
    moves = random_moves(seed)
    try:
        return _play(seed, moves, check_end)
    except Exception as error:
        moves = _shortened(seed, moves, check_end)
        steps = "\n".join(f"  {move}" for move in moves)
        raise AssertionError(f"walk {seed} fails: {error!r}\n{random_world(seed).job}\nmoves:\n{steps}") from error


def _play(seed: int, moves: list[Move], check_end: Callable[[Walk], None]) -> Walk:
    walk = random_world(seed)
    walk.send(events.Tick())
    for move in moves:
        make(walk, move)
    check_end(walk)
    return walk


def _shortened(seed: int, moves: list[Move], check_end: Callable[[Walk], None]) -> list[Move]:
    """`moves` without those that the failure does not need."""
    for i in reversed(range(len(moves))):
        fewer = moves[:i] + moves[i + 1 :]
        try:
            _play(seed, fewer, check_end)
        except Exception:
            moves = fewer
    return moves


def end_job(walk: Walk) -> None:
    """A cooperative world answers every action, has machines, and repairs what the clouds rejected: the job ends."""
    walk.offers = OFFERS
    walk.unavailable.clear()
    for _ in range(MAX_ANSWERS):
        if walk.respond(finishing=True):
            continue
        if walk.job.is_finalized:
            return
        assert walk.wake_at is not None
        walk.now = max(walk.now, walk.wake_at)
        walk.send(events.Tick())
    raise AssertionError(f"it does not end: {walk.job}")


def make(walk: Walk, move: Move) -> None:
    """Perform `move`."""
    walk.now += move.wait_s
    match move.kind:
        case "nothing":
            pass
        case "cooperate":
            walk.respond(finishing=False, n=move.n)
        case "wake":
            walk.now = max(walk.now, walk.wake_at or walk.now)
            walk.send(events.Tick())
        case "again":
            walk.send(walk.sent[-1 - move.n % len(walk.sent)])
        case "market":
            walk.offers = (OFFERS, OFFERS[:1], ())[move.n % 3]
        case "cancel":
            walk.send(events.CancelRequested(grace_s=[0.0, 1.0, 60.0][move.n % 3]))
        case "lie":
            walk.send(_lie(walk, move))
        case _:
            event = _chaos(walk, move)
            if event is not None:
                walk.send(event)


# --- events that may be true ------------------------------------------------------------------------------------------

GONE_REASONS = [Reason.PREEMPTED, Reason.MACHINE_STOPPED, Reason.MACHINE_CRASHED, Reason.NO_CAPACITY]
KINDS = [FaultKind.AVOID_ZONE] * 5 + [FaultKind.AVOID_REGION, FaultKind.AVOID_CLOUD, FaultKind.RETRY_LATER]
KINDS += [FaultKind.GIVE_UP]


def _chaos(walk: Walk, move: Move) -> events.Event | None:
    """An event about some task's attempt: the newest, an older one, or one that never was."""
    task, key = _subject(walk, move)
    attempt, at = task.attempt(key[1]), (*key, move.rank)
    match move.kind:
        case "storage" if task.index in walk.storage_requested:
            return (events.StorageReady(task.index), events.StorageFailed(task.index, "none"))[move.n % 5 == 0]
        case "launched":
            return events.Launched(*key, tuple(events.Machine(r, f"i-{r}") for r in range(task.num_nodes)))
        case "refused" if key in walk.launched and (attempt is None or attempt.booted_at is None):
            failure = unavailable_after_launch(OFFERS[move.n % 3], walk.now, kind=KINDS[move.n % len(KINDS)])
            is_given_up = attempt is not None and not attempt.is_wanted and move.n % 2 == 0
            may_exist = move.n % 7 == 0
            return events.LaunchCancelled(*key) if is_given_up else events.LaunchRefused(*key, failure, may_exist)
        case "gone" if key in walk.launched:
            return events.AttemptGone(*key)
        case "report":
            return _report(task, attempt, move, at)
        case "silent":
            return events.NodeDisconnected(*at)
        case "notice":
            return events.PreemptionNotice(*at, deadline=walk.now + [-1, 30, 120][move.n % 3])
        case "saved":
            return _progress(walk, move, key)
        case "seen":
            return events.MachinesDescribed(*key, dict.fromkeys(range(task.num_nodes)))
        case "lost":
            return events.MachinesDescribed(*key, {move.rank: GONE_REASONS[move.n % len(GONE_REASONS)]})
    return None


def _subject(walk: Walk, move: Move) -> tuple[TaskView, tuple[int, int]]:
    """The task that `move` is about, and its attempt's key."""
    current = walk.job.current_task.index if walk.job.current_task else 0
    task = walk.job.tasks[(current + move.task) % len(walk.job.tasks)]
    return task, (task.index, max(0, task.next_generation - 1 - move.back))


# What a node may truthfully report under a directive: phase, exit code, failed stage, interrupted.
DRAINED = (NodePhase.ENDED, 143, None, True)
REPORTS: dict[Target, list[tuple[NodePhase, int | None, str | None, bool]]] = {
    Target.WAIT: [(NodePhase.BOOTED, None, None, False)],
    Target.SETUP: [
        (NodePhase.MOUNTING, None, None, False),
        (NodePhase.SETUP, None, None, False),
        (NodePhase.READY, None, None, False),
        (NodePhase.FLUSHING, None, None, False),  # after a failed setup
        (NodePhase.ENDED, None, "mounts", False),
        (NodePhase.ENDED, 1, "setup", False),
        (NodePhase.ENDED, 42, "setup", False),
        DRAINED,  # after a notice that only the node has received
    ],
    Target.RUN: [
        (NodePhase.RUNNING, None, None, False),
        (NodePhase.FLUSHING, None, None, False),
        (NodePhase.ENDED, 0, None, False),
        (NodePhase.ENDED, 1, "run", False),
        (NodePhase.ENDED, 42, "run", False),
        (NodePhase.ENDED, 0, "flush", False),
    ],
    Target.FINISH: [  # `run` has ended, and what it left in the background is being ended
        (NodePhase.FLUSHING, 0, None, False),
        (NodePhase.ENDED, 0, None, False),
        (NodePhase.ENDED, 0, "flush", False),
    ],
    Target.DRAIN: [(NodePhase.FLUSHING, None, None, False), (NodePhase.ENDED, 0, None, False), DRAINED],
    Target.STOP: [DRAINED],
}


def _progress(walk: Walk, move: Move, key: tuple[int, int]) -> events.Event:
    if move.n % 5 == 0:
        gpus = events.GpusReported(*key, busy=move.n % 2 == 0)
        saved, loaded = events.StepSaved(*key, move.n), events.CheckpointLoaded(*key, move.n - 5)
        return (saved, gpus, loaded)[(move.rank + move.n // 5) % 3]
    steps = (None, None) if move.n % 3 else (move.n, 2000)
    return events.CheckpointDurable(*key, walk.now - [-9, 0, 30, 1000][move.n % 4], *steps)


def _report(task: TaskView, attempt: AttemptView | None, move: Move, at: tuple[int, int, int]) -> events.Event | None:
    """A node's report. A node that has ended reports nothing; one of an old attempt may report anything."""
    node = attempt.nodes[move.rank] if attempt and move.rank < task.num_nodes else None
    if node is not None and node.phase is NodePhase.ENDED:
        return None
    reports = REPORTS[directive_for(attempt).target] if attempt else [r for some in REPORTS.values() for r in some]
    phase, exit_code, stage, interrupted = reports[move.n % len(reports)]
    return events.NodeReported(*at, phase, "127.0.0.9", exit_code, stage, interrupted, mount_lost=move.n % 11 == 10)


# --- events that cannot be true ---------------------------------------------------------------------------------------

STAGES = [None, None, None, "mounts", "setup", "run", "flush", "files", ""]
TIMES = [-1e5, -1.0, 0.0, 30.0, 1e6, nan, inf, -inf]


def _lie(walk: Walk, move: Move) -> events.Event:
    """An event that no cloud and no node would send in this state."""
    chance = Random(move.n)
    task, key = _subject(walk, move)
    at, when = (*key, chance.choice([move.rank, move.rank, -1, 7])), walk.now + chance.choice(TIMES)
    failure = unavailable_after_launch(chance.choice(OFFERS), walk.now, kind=chance.choice(list(FaultKind)))
    ranks = [rank for rank in range(-1, task.num_nodes) if chance.random() < 0.7]
    report = events.NodeReported(
        *at,
        phase=chance.choice(list(NodePhase)),
        exit_code=chance.choice([None, 0, 1, 42, 143]),
        failed_stage=chance.choice(STAGES),
        interrupted=chance.random() < 0.2,
        mount_lost=chance.random() < 0.1,
    )
    some_task = chance.choice([*range(len(walk.job.tasks)), -1, 9])
    others: list[events.Event] = [
        events.StorageReady(some_task),
        events.StorageFailed(some_task, "none"),
        events.Launched(*key, tuple(events.Machine(rank, f"i-{rank}") for rank in ranks)),
        events.LaunchRefused(
            *key, replace(failure, at=when, until=when), may_exist=chance.random() < 0.3, is_final=chance.random() < 0.1
        ),
        events.LaunchCancelled(*key),
        events.PreemptionNotice(*at, when),
        events.MachinesDescribed(*key, {rank: chance.choice([None, *Reason]) for rank in ranks}),
        events.AttemptGone(*key),
        events.CheckpointDurable(*key, when, *chance.choices([None, -5, 0, 10, 2**62, 10**400], k=2)),
        events.CancelRequested(chance.choice([nan, inf])),
        events.StepSaved(*key, chance.choice([-5, 0, 10, 2**62, 10**400])),
        events.CheckpointLoaded(*key, chance.choice([-5, 0, 10, 2**62, 10**400])),
        events.GpusReported(*key, busy=chance.random() < 0.5),
    ]
    return report if chance.random() < 0.6 else chance.choice(others)
