"""Performs intents: the only place that changes anything in a cloud.

Each intent runs in one of its cloud's own threads. It answers with an `Outcome`, which the reconciler records
under the guard of the lease, or with a `Later`, to be tried again. Nothing here sleeps or writes to the database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from perdure.controller.clock import Clock
from perdure.controller.clouds.base import (
    VISIBLE_WITHIN_S,
    Bootstrap,
    Cloud,
    Fault,
    Instance,
    InstanceState,
    LaunchRequest,
    Owner,
)
from perdure.controller.crashpoints import reach
from perdure.controller.keyring import AttemptKey, Keyring
from perdure.controller.machines import Machines
from perdure.controller.store import codec
from perdure.controller.store.intents import Intent, IntentKind
from perdure.recovery import events
from perdure.recovery.market import FaultKind, Offer, Refusal
from perdure.recovery.policies.cooldown import launch_refusal
from perdure.recovery.reasons import Reason

log = structlog.get_logger(__name__)

Lifetimes = dict[int, tuple[float | None, float | None]]
"""rank → (launched, ended), epoch seconds, as the cloud bills them"""


@dataclass(frozen=True)
class Outcome:
    """How an intent ended: `event` is what it means for the job. `is_throttled`: the cloud asked to be called less."""

    result: str
    event: events.Event
    error: str | None = None
    lifetimes: Lifetimes = field(default_factory=dict)
    is_throttled: bool = False


@dataclass(frozen=True)
class Later:
    """Nothing is settled; try again in `after_s`. `error` is kept and shown; None when there is none to speak of.

    `was_tried`: the outside was called, as far as is known. `found`: machines that nobody knew of; once they have ended
    their cloud may list them no more, so they are written down at once. `is_throttled`: as of `Outcome`.
    """

    after_s: float
    error: str | None = None
    was_tried: bool = True
    found: events.Launched | None = None
    is_throttled: bool = False


class Buckets(Protocol):
    """What a task's storage needs done outside."""

    def prepare(self, intent: Intent) -> Outcome | Later: ...

    def remove(self, intent: Intent) -> Outcome | Later: ...


# A launch whose result stays unknown is asked for again this often, by its token, before it is given up.
_MOST_UNKNOWN = 8


@dataclass(frozen=True)
class Actor:
    """Performs one intent at a time; safe to share between threads. `refusals`: those that a job knows of.

    `fingerprint`: of the certificate that nodes are to pin. `speed`: of `clock` beside the world, where clouds are.
    `most_machines`: of a cloud, by name; what is wider than that can never be had there.
    """

    clouds: Mapping[str, Cloud]
    keyring: Keyring
    buckets: Buckets
    clock: Clock
    endpoint: str
    artifacts: Mapping[str, str]
    refusals: Callable[[int], Sequence[Refusal]]
    fingerprint: str | None = None
    speed: float = 1.0
    most_machines: Mapping[str, int] = field(default_factory=dict)

    def perform(self, intent: Intent, machines: Machines, tries: int) -> Outcome | Later:
        """Do what `intent` says. `machines`: the attempt's, as far as they are known."""
        match intent.kind:
            case IntentKind.LAUNCH:
                return self._launch(intent, tries)
            case IntentKind.TERMINATE:
                return self._terminate(intent, machines, tries)
            case IntentKind.PREPARE_STORAGE:
                return _sooner(self.buckets.prepare(intent), tries)
            case IntentKind.REMOVE_STORAGE:
                return _sooner(self.buckets.remove(intent), tries)

    def look(self, key: AttemptKey, offer: Offer, machines: Machines) -> events.MachinesSeen | Fault:
        """Ask the cloud about an attempt's machines. The Fault when the cloud did not answer."""
        cloud = self.clouds[offer.cloud]
        is_new = self._may_be_unseen(machines.since)
        try:
            seen = {i.id: i for i in cloud.describe(offer.region, machines.ids)}
        except Exception as error:  # noqa: BLE001 - classified; silence is no proof of death
            fault = cloud.classify(error)
            log.warning("cloud.describe_failed", cloud=cloud.name, code=fault.code, error=fault.message)
            return fault
        fates = {rank: None if is_new and id not in seen else _fate(seen.get(id)) for rank, id in machines.known}
        return events.MachinesSeen(key[1], key[2], fates)

    def _may_be_unseen(self, since: float | None) -> bool:
        """Whether machines bought at `since` may exist although their cloud does not show them.

        To be asked before the cloud is: who stood still after its answer has that answer all the same, however late.
        """
        return since is not None and self.clock.now() - since < VISIBLE_WITHIN_S * self.speed

    # --- launch ---------------------------------------------------------------------------------------

    def _launch(self, intent: Intent, tries: int) -> Outcome | Later:
        request = self._request(intent)
        cloud = self.clouds[request.offer.cloud]
        if request.num_nodes > self.most_machines.get(cloud.name, request.num_nodes):
            return self._launch_failed(intent, request, _too_wide(request, self.most_machines[cloud.name]), tries)
        try:
            reach("launch.calling")
            instances = cloud.launch(request)
            reach("launch.called")
        except Exception as error:  # noqa: BLE001 - the cloud's own table says what it means
            return self._launch_failed(intent, request, cloud.classify(error), tries)
        machines = tuple(events.Machine(i.rank, i.id, i.ip) for i in sorted(instances, key=lambda i: i.rank))
        launched = events.Launched(intent.task, intent.generation, machines)
        return Outcome("launched", launched, lifetimes=_lifetimes(instances))

    def _launch_failed(self, intent: Intent, request: LaunchRequest, fault: Fault, tries: int) -> Outcome | Later:
        log.info("launch.failed", job=intent.job_id, code=fault.code, kind=fault.kind.value, error=fault.message)
        reach("launch.refused")
        text = f"{fault.code}: {fault.message}"
        if fault.kind is FaultKind.FIND_OUT and tries + 1 < _MOST_UNKNOWN:
            # The same token again: if it did happen, this call returns what it bought.
            return Later(min(30.0, 0.5 * 2.0**tries), text)
        refusal = self._refusal(intent.job_id, request.offer, fault)
        # A no to this try says nothing about an earlier one whose answer never came.
        may_exist = fault.kind is FaultKind.FIND_OUT or tries > 0
        refused = events.LaunchRefused(intent.task, intent.generation, refusal, may_exist)
        return Outcome("refused", refused, error=text, is_throttled=fault.reason is Reason.THROTTLED)

    def _refusal(self, job_id: int, offer: Offer, fault: Fault) -> Refusal:
        return launch_refusal(
            offer,
            self.clock.now(),
            kind=fault.kind,
            reason=fault.reason,
            earlier=self.refusals(job_id),
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
        key = (intent.job_id, intent.task, intent.generation)
        return LaunchRequest(
            owner=Owner(data["controller"], *key, token=intent.token),
            offer=codec.offer(data["offer"]),
            num_nodes=data["num_nodes"],
            bootstrap=Bootstrap(self.endpoint, self.keyring.attempt_token(key), dict(self.artifacts), self.fingerprint),
            name=data["name"],
            disk_gib=data.get("disk_gib"),
            disk_tier=data.get("disk_tier"),
            network_tier=data.get("network_tier"),
            image_id=data.get("image_id"),
            labels=data.get("labels") or {},
        )

    # --- terminate ------------------------------------------------------------------------------------

    def _terminate(self, intent: Intent, machines: Machines, tries: int) -> Outcome | Later:
        """Ask for the end, and look whether it has come. Repeated until the cloud says that all are gone."""
        offer = codec.offer(intent.request["offer"])
        cloud = self.clouds[offer.cloud]
        gone = events.AttemptGone(intent.task, intent.generation)
        found: tuple[events.Machine, ...] = ()
        is_new = self._may_be_unseen(machines.since or intent.created_at)
        try:
            if not machines.known:
                found = self._found_by_token(cloud, intent)
            ranks = dict((id, rank) for rank, id in machines.known) or {m.instance_id: m.rank for m in found}
            if ranks:
                reach("terminate.calling")
                cloud.terminate(offer.region, list(ranks))
                reach("terminate.called")
            seen = cloud.describe(offer.region, list(ranks)) if ranks else []
        except Exception as error:  # noqa: BLE001 - never given up, whatever it is
            fault = cloud.classify(error)
            log.warning("terminate.failed", job=intent.job_id, code=fault.code, error=fault.message)
            pause_s, text = min(60.0, 1.0 * 2.0 ** min(tries, 6)), f"{fault.code}: {fault.message}"
            is_throttled = fault.reason is Reason.THROTTLED
            return Later(pause_s, text, found=_launched(intent, found), is_throttled=is_throttled)
        lifetimes = _lifetimes(seen)
        may_live = is_new and (len(seen) < len(ranks) or not ranks)
        if all(i.state is InstanceState.GONE for i in seen) and not may_live:
            reach("terminate.confirmed")
            return Outcome("gone", gone, lifetimes=lifetimes)
        return Later(min(5.0, 0.05 * 2.0 ** min(tries, 7)), found=_launched(intent, found))

    def _found_by_token(self, cloud: Cloud, intent: Intent) -> tuple[events.Machine, ...]:
        """Machines of an attempt whose launch was never answered."""
        owned = cloud.list_owned(intent.request["controller"])
        key = (intent.job_id, intent.task, intent.generation)
        own = (i for i in owned if (i.owner.job_id, i.owner.task, i.owner.generation) == key)
        return tuple(events.Machine(i.rank, i.id, i.ip) for i in own)


def _too_wide(request: LaunchRequest, most: int) -> Fault:
    cloud = request.offer.cloud
    return Fault(
        FaultKind.GIVE_UP,
        Reason.QUOTA,
        "most_machines",
        f"{request.num_nodes} machines at a time are more than {cloud}.most_machines ({most}) in config.yaml allows",
        whole_cloud=True,
        any_market=True,
        any_instance_type=True,
    )


def _launched(intent: Intent, machines: tuple[events.Machine, ...]) -> events.Launched | None:
    return events.Launched(intent.task, intent.generation, machines) if machines else None


def _sooner(answer: Outcome | Later, tries: int) -> Outcome | Later:
    """The first tries after the first failure follow fast: most troubles of a store pass quickly."""
    return replace(answer, after_s=min(answer.after_s, 2.0 ** min(tries, 10))) if isinstance(answer, Later) else answer


def _lifetimes(instances: Sequence[Instance]) -> Lifetimes:
    return {i.rank: (i.launched_at, i.ended_at) for i in instances}


def _fate(instance: Instance | None) -> Reason | None:
    """Why a machine is gone, or None while it exists. One that its cloud does not know any more went without a word."""
    if instance is None:
        return Reason.MACHINE_CRASHED
    if instance.state in (InstanceState.PENDING, InstanceState.RUNNING):
        return None
    if instance.state is InstanceState.ENDING:
        # A workload may still run on it, unless there was no room for it after all.
        return Reason.NO_CAPACITY if instance.gone_reason is Reason.NO_CAPACITY else None
    return instance.gone_reason or Reason.MACHINE_CRASHED
