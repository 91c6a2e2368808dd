"""What the project allows: who calls, what they may do, which regions there are, and what quotas have left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from perdure.controller.clouds.checks import Finding, Look, Outcome, Quota, look_through, permissions, quotas
from perdure.controller.clouds.gcp import billing, faults
from perdure.controller.clouds.gcp.connections import Connections
from perdure.controller.clouds.gcp.permissions import wanted
from perdure.controller.clouds.gcp.settings import GcpSettings

RESOURCE_MANAGER_URL = "https://cloudresourcemanager.googleapis.com"
ROLE_FIX = "give it the role of deploy/iam/gcp-controller.yaml in this project"
ASK_FIX = "enable what tells of permissions: gcloud services enable cloudresourcemanager.googleapis.com"
QUOTA_FIX = "ask for more under IAM & Admin, Quotas, in Google's console, or use other machines"
REGION_FIX = "correct gcp.regions in config.yaml"

# Quotas that a launch meets: (Google's name for those of spot machines, for those of others, in words). Spot machines
# count among the others where a project has none of their own: cloud.google.com/compute/resource-usage
_CPUS = ("PREEMPTIBLE_CPUS", "CPUS", "vCPUs")
_GPUS = tuple(
    (f"PREEMPTIBLE_NVIDIA_{gpu}_GPUS", f"NVIDIA_{gpu}_GPUS", f"{name} GPUs")
    for gpu, name in (
        *(("T4", "T4"), ("L4", "L4"), ("P4", "P4"), ("V100", "V100"), ("P100", "P100")),
        *(("A100", "A100"), ("A100_80GB", "A100-80GB"), ("H100", "H100")),
    )
)
ADDRESSES = "IN_USE_ADDRESSES"


class Checking:
    """Asks when it is told to, and remembers nothing."""

    def __init__(self, settings: GcpSettings, connections: Connections) -> None:
        self._settings = settings
        self._connections = connections

    def findings(self) -> list[Finding]:
        """See `Checkable.check`."""
        return look_through(
            Look("credentials", self._who, "correct the credentials: see the README, Google Cloud"),
            (
                Look("permissions", self._permissions, ASK_FIX),
                Look("quotas", self._regions, ROLE_FIX),
                Look("prices", self._prices, billing.FIX),
            ),
            faults.classify,
        )

    def _who(self) -> Iterator[Finding]:
        """By a call that nobody is refused: whoever is not known to Google is not let in."""
        who = self._connections.account()
        next(iter(self._connections.zones.list(request=self._asked(max_results=1), **self._connections.once)), None)
        yield Finding("credentials", Outcome.OK, f"{who} in project {self._connections.project}")

    def _permissions(self) -> Iterable[Finding]:
        found = list(wanted(self._settings))
        body = {"permissions": [one.name for one in found]}
        path = f"/v3/projects/{self._connections.project}:testIamPermissions"
        granted = self._connections.call("POST", RESOURCE_MANAGER_URL, path, body).get("permissions", ())
        return permissions(found, {one.name for one in found} - set(granted), ROLE_FIX)

    def _regions(self) -> Iterator[Finding]:
        told = {
            one.name: {quota.metric: (quota.limit, quota.usage) for quota in one.quotas}
            for one in self._connections.regions.list(request=self._asked(), **self._connections.once)
        }
        used = self._settings.regions or tuple(sorted(told))
        there = [region for region in used if region in told]
        if there:
            yield Finding("regions", Outcome.OK, f"{len(there)} of {len(used)} that are used are there")
        for region in used:
            if region not in told:
                text = f"the project has no region {region}"
                yield Finding("regions", Outcome.LIMITS if there else Outcome.FAILS, text, REGION_FIX)
        yield from quotas(list(quotas_of({region: told[region] for region in there}, self._settings)), QUOTA_FIX)

    def _prices(self) -> Iterator[Finding]:
        """Nothing that is bought depends on it."""
        try:
            billing.look(self._connections)
        except Exception as error:  # noqa: BLE001 - a look that fails is a finding
            text = f"Google's price list is not told ({faults.code_of(error)}): prices are from a table"
            yield Finding("prices", Outcome.UNKNOWN, text, billing.FIX)
        else:
            yield Finding("prices", Outcome.OK, "Google's price list can be read")

    def _asked(self, **more: Any) -> dict[str, Any]:
        return {"project": self._connections.project, **more}


def quotas_of(told: Mapping[str, Mapping[str, tuple[float, float]]], settings: GcpSettings) -> Iterator[Quota]:
    """`told`: region → Google's name → (limit, usage)."""
    for spot, standard, what in (_CPUS, *_GPUS):
        for region, metrics in told.items():
            if own := metrics.get(spot):
                shared = metrics.get(standard, (0.0, 0.0))
                yield Quota(f"spot {what}", region, *(own if own[0] > 0 else shared))
        for region, metrics in told.items():
            if standard in metrics:
                yield Quota(f"on-demand {what}", region, *metrics[standard])
    if settings.external_ip:
        for region, metrics in told.items():
            if ADDRESSES in metrics:
                yield Quota("public addresses in use", region, *metrics[ADDRESSES])
