"""Checks a Google Cloud project: the caller's identity, permissions, regions, quotas and access to prices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from perdure.controller.clouds.base.account_checks import (
    Check,
    Finding,
    Quota,
    Severity,
    permission_findings,
    quota_findings,
    run_checks,
)
from perdure.controller.clouds.gcp import faults
from perdure.controller.clouds.gcp.iam.permissions import required_permissions
from perdure.controller.clouds.gcp.pricing import retail_prices
from perdure.controller.clouds.gcp.sdk.connections import GcpConnections
from perdure.controller.clouds.gcp.settings import GcpSettings

RESOURCE_MANAGER_URL = "https://cloudresourcemanager.googleapis.com"
ROLE_FIX = "give it the role of deploy/iam/gcp-controller.yaml in this project"
API_FIX = "enable the API that checks permissions: gcloud services enable cloudresourcemanager.googleapis.com"
QUOTA_FIX = "request more under IAM & Admin, Quotas, in Google's console, or use other machines"
REGION_FIX = "correct gcp.regions in config.yaml"

# Quotas of a launch: (Google's name for the spot quota, for the standard quota, a description). In a project without a
# spot quota, spot machines count towards the standard one: cloud.google.com/compute/resource-usage
_CPUS = ("PREEMPTIBLE_CPUS", "CPUS", "vCPUs")
_GPUS = tuple(
    (f"PREEMPTIBLE_NVIDIA_{gpu}_GPUS", f"NVIDIA_{gpu}_GPUS", f"{name} GPUs")
    for gpu, name in (
        *(("T4", "T4"), ("L4", "L4"), ("P4", "P4"), ("V100", "V100"), ("P100", "P100")),
        *(("A100", "A100"), ("A100_80GB", "A100-80GB"), ("H100", "H100")),
    )
)
ADDRESSES = "IN_USE_ADDRESSES"


class GcpAccountCheck:
    """Runs the checks, without caching."""

    def __init__(self, settings: GcpSettings, connections: GcpConnections) -> None:
        self._settings = settings
        self._connections = connections

    def findings(self) -> list[Finding]:
        """See `Checkable.check`."""
        return run_checks(
            Check("credentials", self._identity, "correct the credentials: see the README, Google Cloud"),
            (
                Check("permissions", self._permissions, API_FIX),
                Check("quotas", self._regions, ROLE_FIX),
                Check("prices", self._prices, retail_prices.FIX),
            ),
            faults.classify,
        )

    def _identity(self) -> Iterator[Finding]:
        """Makes a call that needs no particular permission, and fails only for invalid credentials."""
        account = self._connections.account()
        next(iter(self._connections.zones.list(request=self._request(max_results=1), **self._connections.once)), None)
        yield Finding("credentials", Severity.OK, f"{account} in project {self._connections.project}")

    def _permissions(self) -> Iterable[Finding]:
        required = list(required_permissions(self._settings))
        body = {"permissions": [permission.name for permission in required]}
        path = f"/v3/projects/{self._connections.project}:testIamPermissions"
        granted = self._connections.call("POST", RESOURCE_MANAGER_URL, path, body).get("permissions", ())
        missing = {permission.name for permission in required} - set(granted)
        return permission_findings(required, missing, ROLE_FIX)

    def _regions(self) -> Iterator[Finding]:
        metrics = {
            region.name: {quota.metric: (quota.limit, quota.usage) for quota in region.quotas}
            for region in self._connections.regions.list(request=self._request(), **self._connections.once)
        }
        used = self._settings.regions or tuple(sorted(metrics))
        existing = [region for region in used if region in metrics]
        if existing:
            yield Finding("regions", Severity.OK, f"{len(existing)} of {len(used)} regions in use exist")
        for region in used:
            if region not in metrics:
                text = f"the project has no region {region}"
                yield Finding("regions", Severity.WARNING if existing else Severity.ERROR, text, REGION_FIX)
        quotas = list(quotas_of({region: metrics[region] for region in existing}, self._settings))
        yield from quota_findings(quotas, QUOTA_FIX)

    def _prices(self) -> Iterator[Finding]:
        """Launches do not depend on access to the price list."""
        try:
            retail_prices.check_access(self._connections)
        except Exception as error:  # noqa: BLE001 - a check that fails is a finding
            text = f"Google's price list is unavailable ({faults.code_of(error)}): prices come from the built-in table"
            yield Finding("prices", Severity.UNKNOWN, text, retail_prices.FIX)
        else:
            yield Finding("prices", Severity.OK, "Google's price list is available")

    def _request(self, **more: Any) -> dict[str, Any]:
        return {"project": self._connections.project, **more}


def quotas_of(
    metrics_by_region: Mapping[str, Mapping[str, tuple[float, float]]], settings: GcpSettings
) -> Iterator[Quota]:
    """`metrics_by_region`: region → Google's name of the quota → (limit, usage)."""
    for spot, standard, what in (_CPUS, *_GPUS):
        for region, metrics in metrics_by_region.items():
            if own := metrics.get(spot):
                shared = metrics.get(standard, (0.0, 0.0))
                yield Quota(f"spot {what}", region, *(own if own[0] > 0 else shared))
        for region, metrics in metrics_by_region.items():
            if standard in metrics:
                yield Quota(f"on-demand {what}", region, *metrics[standard])
    if settings.external_ip:
        for region, metrics in metrics_by_region.items():
            if ADDRESSES in metrics:
                yield Quota("public addresses in use", region, *metrics[ADDRESSES])
