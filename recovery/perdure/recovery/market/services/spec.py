"""What a service's `service:` section says, as far as decisions depend on it. Defaults are SkyPilot's."""

from __future__ import annotations

from dataclasses import field

from perdure.recovery.frozen import dataclass


@dataclass(frozen=True)
class ReplicaPolicy:
    """`replica_policy`, or `replicas`, which fixes both limits."""

    min_replicas: int = 1
    max_replicas: int | None = None  # None: as many as `min_replicas`
    #: Requests per second that a replica can answer. By accelerator if replicas may differ, such as {"A100:1": 2.0}.
    target_qps: float | dict[str, float] | None = None
    target_ongoing: float | None = None  # requests that a replica can answer at the same time
    upscale_delay_s: float = 300.0
    downscale_delay_s: float = 1200.0
    num_overprovision: int = 0  # more spot replicas than needed
    base_ondemand: int = 0  # of the replicas, so many are on-demand
    ondemand_fallback: bool = False  # on-demand replicas stand in for spot replicas that are not ready
    spreads: bool = False  # `spot_placer`: spot replicas avoid the zones of the others

    @property
    def limit(self) -> int:
        """The most replicas that the load may ask for."""
        return self.min_replicas if self.max_replicas is None else self.max_replicas

    @property
    def scales(self) -> bool:
        """Whether the number of replicas depends on the load."""
        return self.limit > self.min_replicas and (self.target_qps is not None or self.target_ongoing is not None)

    def qps_of(self, accelerator: str | None) -> float | None:
        """The requests per second that a replica with this accelerator can answer: `A100:8`, `A100` or None."""
        if not isinstance(self.target_qps, dict):
            return self.target_qps
        by_name = {name.upper(): qps for name, qps in self.target_qps.items()}
        whole = (accelerator or "").upper()
        known = by_name.get(whole, by_name.get(whole.partition(":")[0]))
        return min(by_name.values()) if known is None else known


@dataclass(frozen=True)
class ServiceSpec:
    """One version of a service."""

    policy: ReplicaPolicy = field(default_factory=ReplicaPolicy)
    initial_delay_s: float = 1200.0  # from the start of `run` until the replica must be ready
    failure_threshold_s: float = 180.0  # how long the probes of a replica that was ready may fail
    uses_spot: bool = False
