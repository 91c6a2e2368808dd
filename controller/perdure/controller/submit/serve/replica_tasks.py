"""Turns the task of a service into the task of a replica."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from perdure.controller.runtime.security.secret_refs import mask_secrets
from perdure.controller.store.records.jobs import NewTask
from perdure.controller.submit.compiler import CompiledJob
from perdure.recovery.frozen import replace as replace_value
from perdure.recovery.market.services.spec import ReplicaPolicy, ServiceSpec
from perdure.recovery.market.unavailable import UnavailableOffer
from perdure.sdk.spec import service_fields as schema_service

SPREAD = "SPREAD"
_ALTERNATIVES = ("any_of", "ordered")


@dataclass(frozen=True)
class OfService:
    """Where a submission belongs: to a service, as one of its replicas."""

    service_id: int
    probe: Mapping[str, Any]  # as in the node spec
    secrets: Mapping[str, str]  # of the task: they are not stored in the probe
    spreads: bool = False
    taken_zones: tuple[str, ...] = ()  # where the service's other replicas are, once for each
    avoided: tuple[UnavailableOffer, ...] = ()  # where they gave a notice, or lost a machine, lately

    def adapt(self, compiled: CompiledJob) -> CompiledJob:
        """The submission's job, compiled for the service: a machine that is lost ends it."""
        return replace(compiled, tasks=[self._adapt(task) for task in compiled.tasks])

    def _adapt(self, task: NewTask) -> NewTask:
        recovery = replace_value(task.view.recovery, recovers=False, avoided=self.avoided)
        if self.spreads:
            recovery = replace_value(recovery, strategy=SPREAD, taken_zones=self.taken_zones)
        spec = {**task.spec, "probe": mask_secrets(dict(self.probe), self.secrets)}
        return replace(task, view=replace_value(task.view, recovery=recovery), spec=spec)


def replica_config(config: Mapping[str, Any], number: int, *, is_spot: bool, uses_spot: bool) -> dict[str, Any]:
    """The configuration of replica `number`. `uses_spot`: the task asks for spot machines."""
    kept = {name: value for name, value in config.items() if name != "service"}
    kept["envs"] = {**(config.get("envs") or {}), "SKYPILOT_SERVE_REPLICA_ID": str(number)}
    if uses_spot and not is_spot:
        kept["resources"] = _on_demand(kept["resources"])
    return kept


def _on_demand(resources: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in resources.items() if name not in ("use_spot", *_ALTERNATIVES)}
    options = {name: [_on_demand(one) for one in resources[name]] for name in _ALTERNATIVES if name in resources}
    return {**plain, **options}


def probe_of(section: Mapping[str, Any], port: int) -> dict[str, Any]:
    """The probe of a service as its nodes get it."""
    given = section["readiness_probe"]
    return {
        "path": given["path"],
        "port": port,
        "timeout_s": float(given.get("timeout_seconds", schema_service.DEFAULT_PROBE_TIMEOUT_S)),
        "interval_s": float(given.get("endpoint_probe_interval_seconds", schema_service.DEFAULT_PROBE_INTERVAL_S)),
        "post_data": given.get("post_data"),
        "headers": given.get("headers") or {},
    }


def spec_of(section: Mapping[str, Any], *, uses_spot: bool) -> ServiceSpec:
    """The `service` section, as decisions see it."""
    probe, given = section["readiness_probe"], section.get("replica_policy")
    return ServiceSpec(
        policy=_policy(given) if given else ReplicaPolicy(min_replicas=section.get("replicas", 1)),
        initial_delay_s=float(probe.get("initial_delay_seconds", schema_service.DEFAULT_INITIAL_DELAY_S)),
        failure_threshold_s=float(
            probe.get("consecutive_failure_threshold_timeout", schema_service.DEFAULT_FAILURE_THRESHOLD_S)
        ),
        uses_spot=uses_spot,
    )


def _policy(given: Mapping[str, Any]) -> ReplicaPolicy:
    return ReplicaPolicy(
        min_replicas=given["min_replicas"],
        max_replicas=given.get("max_replicas"),
        target_qps=given.get("target_qps_per_replica"),
        target_ongoing=given.get("target_ongoing_requests_per_replica"),
        upscale_delay_s=float(given.get("upscale_delay_seconds", schema_service.DEFAULT_UPSCALE_DELAY_S)),
        downscale_delay_s=float(given.get("downscale_delay_seconds", schema_service.DEFAULT_DOWNSCALE_DELAY_S)),
        num_overprovision=given.get("num_overprovision", 0),
        base_ondemand=given.get("base_ondemand_fallback_replicas", 0),
        ondemand_fallback=given.get("dynamic_ondemand_fallback", False),
        spreads="spot_placer" in given,
    )
