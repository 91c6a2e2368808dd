"""Wires up the path of an intent: `dispatcher`, `worker_pool`, `call_on_thread`, `cloud_actions`, back to the sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import Engine

from perdure.controller.clouds.base.protocol import Cloud
from perdure.controller.execute.call_on_thread import CallOnThread
from perdure.controller.execute.call_types import ResultSink
from perdure.controller.execute.cloud_actions import CloudActions, StorageActions
from perdure.controller.execute.console_output import ConsoleRecorder
from perdure.controller.execute.dispatcher import Dispatcher
from perdure.controller.execute.worker_pool import CloudPools
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.config.limits import Quotas
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.store.clusters import home_rescues
from perdure.controller.store.logs.protocol import LogStore
from perdure.controller.store.queries.usage import usage_reader
from perdure.controller.store.records import jobs
from perdure.recovery.market.unavailable import UnavailableOffer


def build_pipeline(
    *,
    clouds: Mapping[str, Cloud],
    keyring: Keyring,
    storage: StorageActions,
    clock: Clock,
    endpoint: str,
    artifacts: Mapping[str, str],
    unavailable: Callable[[int], Sequence[UnavailableOffer]],
    fingerprint: str | None,
    speed: float,
    quotas: Quotas,
    database: Engine,
    on_result: ResultSink,
    may_act: Callable[[], bool],
    on_call: Callable[[str, str, str, float], None],
    console_logs: tuple[LogStore, Callable[[int], None]],
) -> tuple[CloudPools, Dispatcher]:
    """`on_result` receives every result, from any thread. `may_act`: whether the lease is held. `on_call`: as in
    `CallOnThread`. `console_logs`: `logs` and `on_log` of `ConsoleRecorder`. The first arguments are fields of
    `CloudActions`."""
    executor = CloudActions(
        clouds, keyring, storage, clock, endpoint, artifacts, unavailable, fingerprint, speed, quotas.max_machines,
        home_rescues.reader(database), jobs.live_reader(database), ConsoleRecorder(*console_logs, endpoint),
    )  # fmt: skip
    read_usage = usage_reader(database, clock, always=quotas.limits_launches)
    pools = CloudPools(quotas, read_usage, CallOnThread(executor, on_result, may_act, on_call))
    return pools, Dispatcher(pools, on_result, clock)
