"""What intents do: launches and terminates machines, prepares and removes storage, by calls of clouds and stores.

Three other places call a cloud to change something: `maintenance.orphan_sweep` terminates orphans, `unneeded_resources`
stopped machines of clusters that are down, and the preempt route (`api.routes.jobs`) simulates interruptions.

Each intent runs on a thread of its cloud's pool. It ends in an `IntentOutcome`, which the reconciler records under the
guard of the lease, or in a `RetryLater`. Nothing here sleeps or writes to the database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import structlog

from perdure.controller.clouds import registry
from perdure.controller.clouds.base.partial_listing import list_known
from perdure.controller.clouds.base.protocol import (
    VISIBLE_WITHIN_S,
    Bootstrap,
    Cloud,
    Fault,
    Instance,
    InstanceState,
    LaunchRequest,
    OpenPorts,
    Owner,
)
from perdure.controller.clouds.machine_options import boot_image
from perdure.controller.clouds.reachability import NEVER_CALLED
from perdure.controller.clouds.registry import find_cloud
from perdure.controller.execute.call_types import IntentOutcome, RetryLater
from perdure.controller.execute.console_output import ConsoleRecorder
from perdure.controller.execute.machine_ids import MachineIds
from perdure.controller.execute.stopped_machines import StoppedMachines, attempt_of, lifetimes
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.store import codec
from perdure.controller.store.clusters import cluster_ports
from perdure.controller.store.clusters.cluster_disks import DiskChange, DisksInUse, DisksLost
from perdure.controller.store.clusters.home_rescues import HomeRescue
from perdure.controller.store.records.intents import Intent, IntentKind
from perdure.recovery import events
from perdure.recovery.market.cooldown import unavailable_after_launch
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import Offer
from perdure.recovery.reasons import Reason

log = structlog.get_logger(__name__)


class StorageActions(Protocol):
    """Prepares and removes the buckets of a task."""

    def prepare(self, intent: Intent) -> IntentOutcome | RetryLater: ...

    def remove(self, intent: Intent) -> IntentOutcome | RetryLater: ...


# A launch with an ambiguous result is repeated with its token this many times; then it counts as refused.
_MAX_AMBIGUOUS_RETRIES = 8


@dataclass(frozen=True)
class CloudActions:
    """Performs one intent per call. Safe to share between threads."""

    clouds: Mapping[str, Cloud]
    keyring: Keyring
    storage: StorageActions
    clock: Clock
    endpoint: str  # the URL at which nodes reach the controller
    artifacts: Mapping[str, str]  # name → digest, of what nodes download
    unavailable: Callable[[int], Sequence[UnavailableOffer]]  # the unavailable offers that concern a job, by job id
    fingerprint: str | None = None  # of the TLS certificate that nodes pin
    speed: float = 1.0  # of `clock`, relative to real time, in which clouds live
    max_machines: Mapping[str, int] = field(default_factory=dict)  # by cloud; wider launches are refused
    #: The rescue of a cluster's homes, if it was begun, by cluster, job and generation.
    rescue_of: Callable[[int, int, int], HomeRescue | None] = lambda _cluster, _job, _generation: None
    #: Those of the attempts that are not GONE.
    live: Callable[[Collection[AttemptKey]], Collection[AttemptKey]] = lambda _keys: ()
    console: ConsoleRecorder | None = None  # of machines that never called

    @property
    def _stopped(self) -> StoppedMachines:
        return StoppedMachines(self.clock, self.speed, self.rescue_of, self.live)

    def perform(self, intent: Intent, machines: MachineIds, tries: int) -> IntentOutcome | RetryLater:
        """Perform `intent`. `machines`: the attempt's, as far as they are known. `tries`: how many came before."""
        match intent.kind:
            case IntentKind.LAUNCH:
                return self._launch(intent, tries)
            case IntentKind.TERMINATE:
                return self._terminate(intent, machines, tries)
            case IntentKind.PREPARE_STORAGE:
                return _shorten_early_backoff(self.storage.prepare(intent), tries)
            case IntentKind.REMOVE_STORAGE:
                return _shorten_early_backoff(self.storage.remove(intent), tries)

    def describe(self, key: AttemptKey, offer: Offer, machines: MachineIds) -> events.MachinesDescribed | Fault:
        """Ask the cloud about an attempt's machines. Returns a Fault if the call failed."""
        cloud = find_cloud(self.clouds, offer.cloud)
        is_new = self._may_be_unlisted(machines.since)
        try:
            described = {i.id: i for i in cloud.describe(offer.region, machines.ids)}
        except Exception as error:  # noqa: BLE001 - classified; a failed call does not prove that machines are gone
            fault = cloud.classify(error)
            log.warning("cloud.describe_failed", cloud=cloud.name, code=fault.code, error=fault.message)
            return fault
        gone_reasons = {
            rank: None if _is_outdated(described.get(id), key, is_new=is_new) else _gone_reason(described.get(id))
            for rank, id in machines.known
        }
        messages = {rank: described[id].gone_message for rank, id in machines.known if id in described}
        texts = {rank: text for rank, text in messages.items() if text}
        waiting = (i.rank for i in described.values() if i.state is InstanceState.PENDING)
        return events.MachinesDescribed(key[1], key[2], gone_reasons, texts, frozenset(waiting))

    def _may_be_unlisted(self, since: float | None) -> bool:
        """Whether machines launched at `since` may exist although their cloud does not list them yet.

        Evaluate it before the cloud is called: this process may be suspended between the response and its use.
        """
        return since is not None and self.clock.now() - since < VISIBLE_WITHIN_S * self.speed

    # --- launch ---------------------------------------------------------------------------------------

    def _launch(self, intent: Intent, tries: int) -> IntentOutcome | RetryLater:
        request = self._request(intent)
        cloud = find_cloud(self.clouds, request.offer.cloud)
        if request.num_nodes > self.max_machines.get(cloud.name, request.num_nodes):
            fault = _exceeds_machine_limit(request, self.max_machines[cloud.name])
            return self._launch_failed(intent, request, fault, tries)
        if tries == 0 and (hold := self._hold(intent.job_id, cloud.name)) is not None:
            refused = events.LaunchRefused(intent.task, intent.generation, hold, may_exist=False)
            return IntentOutcome("refused", refused, error=f"{hold.code}: {hold.message}")
        disks: DiskChange | None = None
        try:
            if resumes := intent.request.get("resumes"):
                resumed = self._stopped.start(intent, cloud, request, resumes, tries)
                if isinstance(resumed, RetryLater):
                    return resumed
                if isinstance(resumed, Fault):
                    return self._launch_failed(intent, request, resumed, tries, is_final=True)
                instances, disks = resumed, DisksInUse()
            else:
                failpoint("launch.calling")
                instances = cloud.launch(request)
                failpoint("launch.called")
        except Exception as error:  # noqa: BLE001 - the cloud classifies its own errors
            return self._launch_failed(intent, request, cloud.classify(error), tries)
        machines = tuple(events.Machine(i.rank, i.id, i.ip) for i in sorted(instances, key=lambda i: i.rank))
        launched = events.Launched(intent.task, intent.generation, machines)
        return IntentOutcome("launched", launched, lifetimes=lifetimes(instances), disks=disks)

    def _hold(self, job_id: int, cloud: str) -> UnavailableOffer | None:
        """What holds the cloud for the job. The launch may have been requested before it was held."""
        now = self.clock.now()
        holds = (u for u in self.unavailable(job_id) if u.code == NEVER_CALLED and u.cloud == cloud and u.until > now)
        return next(holds, None)

    def _launch_failed(
        self, intent: Intent, request: LaunchRequest, fault: Fault, tries: int, *, is_final: bool = False
    ) -> IntentOutcome | RetryLater:
        log.info("launch.failed", job=intent.job_id, code=fault.code, kind=fault.kind.value, error=fault.message)
        failpoint("launch.rejected")
        text = f"{fault.code}: {fault.message}"
        if fault.kind is FaultKind.AMBIGUOUS and tries + 1 < _MAX_AMBIGUOUS_RETRIES:
            # Repeat with the same token: if the launch did happen, the next call returns its machines.
            return RetryLater(min(30.0, 0.5 * 2.0**tries), text)
        unavailable = self._unavailable_offer(intent.job_id, request.offer, fault)
        # A refusal of this try proves nothing about an earlier try whose response was lost.
        # Of machines that were to be started again, some may run although the cloud was asked to stop them.
        may_exist = fault.kind is FaultKind.AMBIGUOUS or tries > 0 or "resumes" in intent.request
        refused = events.LaunchRefused(intent.task, intent.generation, unavailable, may_exist, is_final)
        return IntentOutcome("refused", refused, error=text, is_throttled=fault.reason is Reason.THROTTLED)

    def _unavailable_offer(self, job_id: int, offer: Offer, fault: Fault) -> UnavailableOffer:
        return unavailable_after_launch(
            offer,
            self.clock.now(),
            kind=fault.kind,
            reason=fault.reason,
            earlier=self.unavailable(job_id),
            retry_after_s=fault.retry_after_s,
            whole_region=fault.whole_region,
            whole_cloud=fault.whole_cloud,
            any_market=fault.any_market,
            any_instance_type=fault.any_instance_type,
            code=fault.code,
            message=fault.message,
        )

    def _request(self, intent: Intent) -> LaunchRequest:
        data = intent.request
        key = intent.attempt_key
        return LaunchRequest(
            owner=Owner(data["controller"], *key, token=intent.token),
            offer=codec.decode_offer(data["offer"]),
            num_nodes=data["num_nodes"],
            bootstrap=Bootstrap(self.endpoint, self._boot_token(key, data), dict(self.artifacts), self.fingerprint),
            name=data["name"],
            disk_gib=data.get("disk_gib"),
            disk_tier=data.get("disk_tier"),
            network_tier=data.get("network_tier"),
            image_id=boot_image(data.get("image_id"), data["offer"]["cloud"]),
            labels=data.get("labels") or {},
            settings=data.get("settings") or {},
            mount_modes=tuple(data.get("mount_modes") or ()),
            open_ports=_open_ports(data.get("open_ports")),
            keeps_disks=data.get("keeps_disks", False),
        )

    def _boot_token(self, key: AttemptKey, request: Mapping[str, Any]) -> str:
        """Of a machine elsewhere, others may read what it boots with: that is no token that gives access to the job."""
        if registry.is_remote(request["offer"]["cloud"]):
            return self.keyring.boot_token(key)
        return self.keyring.attempt_token(key)

    # --- terminate ------------------------------------------------------------------------------------

    def _terminate(self, intent: Intent, machines: MachineIds, tries: int) -> IntentOutcome | RetryLater:
        """Terminate the machines and check that they are gone. Retried until the cloud reports all of them gone."""
        result = self._end_machines(intent, machines, tries)
        if self.console is not None and isinstance(result, IntentOutcome):
            self.console.add_to_logs(intent.attempt_key)
        return result

    def _read_consoles(self, intent: Intent, cloud: Cloud, region: str, machines: Collection[tuple[int, str]]) -> None:
        """Of the machines that never called. Once: a repeated termination adds nothing."""
        if self.console is not None and (silent := intent.request.get("never_called")):
            of_silent = [(rank, id) for rank, id in machines if rank in silent]
            self.console.read_consoles(cloud, region, intent.attempt_key, of_silent)

    def _end_machines(self, intent: Intent, machines: MachineIds, tries: int) -> IntentOutcome | RetryLater:
        offer = codec.decode_offer(intent.request["offer"])
        cloud = find_cloud(self.clouds, offer.cloud)
        discovered: tuple[events.Machine, ...] = ()
        is_new = self._may_be_unlisted(machines.since or intent.created_at)
        keeps_disks, lost = intent.request.get("keeps_disks", False), None
        try:
            if tries == 0:
                self._read_consoles(intent, cloud, offer.region, machines.known)
            if keeps_disks:
                stopped = self._stopped.stop(intent, cloud, offer, machines, tries)
                if isinstance(stopped, IntentOutcome | RetryLater):
                    return stopped
                lost = stopped
            if not machines.known:
                discovered = self._list_by_token(cloud, offer.region, intent)
            ranks = dict((id, rank) for rank, id in machines.known) or {m.instance_id: m.rank for m in discovered}
            if discovered and tries == 0:
                self._read_consoles(intent, cloud, offer.region, [(rank, id) for id, rank in ranks.items()])
            if ranks:
                failpoint("terminate.calling")
                cloud.terminate(offer.region, list(ranks))
                failpoint("terminate.called")
            described = cloud.describe(offer.region, list(ranks)) if ranks else []
        except Exception as error:  # noqa: BLE001 - a termination is retried after any error
            fault = cloud.classify(error)
            log.warning("terminate.failed", job=intent.job_id, code=fault.code, error=fault.message)
            pause_s, text = min(60.0, 1.0 * 2.0 ** min(tries, 6)), f"{fault.code}: {fault.message}"
            is_throttled = fault.reason is Reason.THROTTLED
            return RetryLater(pause_s, text, discovered=_launched(intent, discovered), is_throttled=is_throttled)
        times = lifetimes(described)
        may_live = is_new and (len(described) < len(ranks) or not ranks)
        if all(i.state is InstanceState.GONE for i in described) and not may_live:
            failpoint("terminate.confirmed")
            preempted = any(i.gone_reason is Reason.PREEMPTED for i in described)
            gone = events.AttemptGone(intent.task, intent.generation, preempted)
            disks = DisksLost() if keeps_disks else None
            return IntentOutcome("gone", gone, error=lost, lifetimes=times, disks=disks)
        return RetryLater(min(5.0, 0.05 * 2.0 ** min(tries, 7)), lost, discovered=_launched(intent, discovered))

    def _list_by_token(self, cloud: Cloud, region: str, intent: Intent) -> tuple[events.Machine, ...]:
        """The machines of an attempt in `region` whose launch has no known result. Other regions may be silent."""
        owned, failures = list_known(cloud, intent.request["controller"])
        if region in failures:
            raise failures[region]
        own = (i for i in owned if attempt_of(i) == intent.attempt_key)
        return tuple(events.Machine(i.rank, i.id, i.ip) for i in own)


def _exceeds_machine_limit(request: LaunchRequest, limit: int) -> Fault:
    cloud = request.offer.cloud
    return Fault(
        FaultKind.GIVE_UP,
        Reason.QUOTA,
        "max_machines",
        f"{request.num_nodes} machines at a time are more than {cloud}.max_machines ({limit}) in config.yaml allows",
        whole_cloud=True,
        any_market=True,
        any_instance_type=True,
    )


def _open_ports(data: Mapping[str, Any] | None) -> OpenPorts | None:
    return None if data is None else OpenPorts(data["name"], cluster_ports.ranges(data["ports"]))


def _launched(intent: Intent, machines: tuple[events.Machine, ...]) -> events.Launched | None:
    return events.Launched(intent.task, intent.generation, machines) if machines else None


def _shorten_early_backoff(result: IntentOutcome | RetryLater, tries: int) -> IntentOutcome | RetryLater:
    """Retry soon after the first failures: most problems of an object store pass quickly."""
    if not isinstance(result, RetryLater):
        return result
    return replace(result, after_s=min(result.after_s, 2.0 ** min(tries, 10)))


def _is_outdated(instance: Instance | None, key: AttemptKey, *, is_new: bool) -> bool:
    """Whether the cloud may not know yet that a machine has just been launched, or started again.

    A machine that is shown stopped, with the attempt that had it before, was started since: each start changes that.
    """
    if instance is None:
        return is_new
    return instance.state is InstanceState.STOPPED and (is_new or attempt_of(instance) != key)


def _gone_reason(instance: Instance | None) -> Reason | None:
    """Why a machine is gone; None while it exists. A machine that its cloud no longer lists has crashed."""
    if instance is None:
        return Reason.MACHINE_CRASHED
    if instance.state in (InstanceState.PENDING, InstanceState.RUNNING):
        return None
    if instance.state is InstanceState.ENDING:
        # A workload may still run on it, unless the cloud had no capacity to start it.
        return Reason.NO_CAPACITY if instance.gone_reason is Reason.NO_CAPACITY else None
    return instance.gone_reason or Reason.MACHINE_CRASHED
