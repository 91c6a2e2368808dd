"""The parts of a running daemon that its API handlers use. Built by `daemon`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlalchemy import Engine

from perdure.controller.changes import Changes
from perdure.controller.channel import Channel
from perdure.controller.clock import Clock, Pace
from perdure.controller.clouds.base import Cloud
from perdure.controller.files import Files
from perdure.controller.intake import Intake
from perdure.controller.keyring import Keyring
from perdure.controller.mail import Incoming
from perdure.controller.nodelogs import Logs
from perdure.controller.nodespec import NodeSpecs
from perdure.controller.probing import Prober
from perdure.controller.reconcile import Reconciler
from perdure.controller.settings import Settings
from perdure.controller.store.counts import Counts
from perdure.controller.submission import Submissions


@dataclass(frozen=True)
class Services:
    """`files`: what users uploaded, and what nodes run, by sha256. `request_stop`: have the daemon end; jobs go on.
    `has_lease`: whether it may act on the jobs that it has. `pace`: of `clock` beside the world. `why_waiting`: why a
    launch of a job's task is held back; None where none is."""

    settings: Settings
    clock: Clock
    keyring: Keyring
    database: Engine
    clouds: Mapping[str, Cloud]
    reconciler: Reconciler
    channel: Channel
    changes: Changes
    incoming: Incoming
    logs: Logs
    specs: NodeSpecs
    submissions: Submissions
    intake: Intake
    files: Files
    counts: Counts
    controller_id: str
    started_at: float
    pace: Pace
    prober: Prober | None
    endpoint: str
    request_stop: Callable[[], None]
    has_lease: Callable[[], bool]
    why_waiting: Callable[[int, int], str | None] = lambda _job_id, _task: None
