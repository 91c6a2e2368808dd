"""Checks an Azure subscription: the caller's identity, permissions, the sizes of each region, and quotas."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from perdure.controller.clouds.azure import faults
from perdure.controller.clouds.azure.iam import permissions
from perdure.controller.clouds.azure.pricing import skus
from perdure.controller.clouds.azure.pricing.catalog import TYPES
from perdure.controller.clouds.azure.sdk.connections import AzureConnections
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.base.account_checks import (
    Check,
    Finding,
    Quota,
    Severity,
    parallel,
    permission_findings,
    quota_findings,
    run_checks,
)

PERMISSIONS_API = "2022-04-01"
ROLE_FIX = "give it the role of deploy/iam/azure-controller.json in this subscription"
STORAGE_FIX = (
    "if you use containers or queues: assign that role in their storage account, unless it is assigned already"
)
QUOTA_FIX = "request more under Quotas in Azure's portal, or use other machines or regions"
SKU_FIX = "remove the region from azure.regions, or ask Azure's support to enable it for the subscription"

PROVIDERS_API = "2021-04-01"
REQUIRED_PROVIDERS = ("Microsoft.Compute", "Microsoft.Network")
PROVIDERS = {
    "Microsoft.Compute": "it launches machines",
    "Microsoft.Network": "machines need networks",
    "Microsoft.Storage": "tasks need it to use containers",
    "Microsoft.ManagedIdentity": "`perdure controller up` needs it",
}

CORES = "on-demand vCPUs of all sizes"
SPOT_CORES = "spot vCPUs of all sizes"


class AzureAccountCheck:
    """Runs the checks, without caching. `regions`: returns the regions in use."""

    def __init__(
        self, settings: AzureSettings, connections: AzureConnections, regions: Callable[[], Sequence[str]]
    ) -> None:
        self._settings = settings
        self._connections = connections
        self._regions = regions

    def findings(self) -> list[Finding]:
        """See `Checkable.check`."""
        return run_checks(
            Check("credentials", self._identity, "correct the credentials: see the README, Azure"),
            (
                Check("permissions", self._permissions, ROLE_FIX),
                Check("providers", self._providers, ROLE_FIX),
                Check("regions", self._sizes, ROLE_FIX),
                Check("quotas", self._quotas, ROLE_FIX),
            ),
            faults.classify,
        )

    def _identity(self) -> Iterator[Finding]:
        caller = account(self._connections.token())
        yield Finding("credentials", Severity.OK, f"{caller} in subscription {self._connections.subscription}")

    def _permissions(self) -> Iterator[Finding]:
        """The permissions in the whole subscription. Grants in single resource groups are not visible here."""
        path = f"/subscriptions/{self._connections.subscription}/providers/Microsoft.Authorization/permissions"
        granted = self._connections.call("GET", path, PERMISSIONS_API).get("value", [])
        required = list(permissions.required_permissions(self._settings))
        missing = permissions.missing((permission.name for permission in required), granted)
        yield from permission_findings(required, missing, ROLE_FIX)
        yield from self._storage_permissions(granted)

    def _storage_permissions(self, granted: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
        """Roles are often assigned in the storage account, which is not visible here: a missing one may exist there."""
        has_key = bool(os.environ.get("AZURE_STORAGE_KEY"))
        actions = [] if has_key else list(permissions.container_permissions())
        data = [] if has_key else list(permissions.blob_permissions())
        data += permissions.queue_permissions(self._settings)
        missing = permissions.missing((permission.name for permission in actions), granted)
        missing |= permissions.missing((permission.name for permission in data), granted, of_data=True)
        num_granted = sum(permission.name not in missing for permission in [*actions, *data])
        if num_granted:
            text = f"{num_granted} of {len(actions) + len(data)} permissions for buckets and queues are granted"
            yield Finding("permissions", Severity.OK, text)
        for permission in [*actions, *data]:
            if permission.name in missing:
                text = f"{permission.name} is not granted in the whole subscription: {permission.purpose}"
                yield Finding("permissions", Severity.UNKNOWN, text, STORAGE_FIX)

    def _providers(self) -> Iterator[Finding]:
        """A new subscription has registered no resource provider, and rejects whatever needs one."""
        registered = 0
        for name, purpose in PROVIDERS.items():
            path = f"/subscriptions/{self._connections.subscription}/providers/{name}"
            state = (self._connections.call("GET", path, PROVIDERS_API) or {}).get("registrationState", "Unknown")
            if state == "Registered":
                registered += 1
                continue
            severity = Severity.ERROR if name in REQUIRED_PROVIDERS else Severity.WARNING
            fix = f"run `az provider register --namespace {name}`, which takes some minutes"
            yield Finding("providers", severity, f"{name} is not registered ({state}): {purpose}", fix)
        if registered:
            yield Finding(
                "providers", Severity.OK, f"{registered} of {len(PROVIDERS)} resource providers are registered"
            )

    def _sizes(self) -> Iterator[Finding]:
        skus_by_region = dict(parallel(lambda region: [(region, self._skus(region))], self._regions()))
        for region, offered in skus_by_region.items():
            restricted = sorted(sku.name for sku in offered.values() if not sku.is_available)
            if len(restricted) == len(offered):
                yield Finding("regions", Severity.WARNING, f"{region} offers this subscription no sizes", SKU_FIX)
            elif restricted:
                num_available = len(offered) - len(restricted)
                text = f"{region} offers {num_available} of {len(TYPES)} sizes; not available to this subscription: "
                yield Finding("regions", Severity.OK, text + ", ".join(restricted))
            else:
                yield Finding("regions", Severity.OK, f"{region} offers {len(offered)} of {len(TYPES)} sizes")

    def _quotas(self) -> list[Finding]:
        quotas = parallel(self._quotas_of, self._regions())
        quotas.sort(key=lambda quota: (quota.name not in (SPOT_CORES, CORES), quota.name))
        return list(quota_findings(quotas, QUOTA_FIX))

    def _quotas_of(self, region: str) -> Iterator[Quota]:
        """Spot machines of all families share one quota; on-demand machines also count in their family's."""
        gpu_families = {sku.family for sku in self._skus(region).values() if TYPES[sku.name].accelerators}
        for usage in self._connections.client().usage.list(region):
            name = str(usage.name.value or "")
            label = {"cores": CORES, "lowprioritycores": SPOT_CORES}.get(name.lower())
            if label is None and name.lower() in gpu_families:
                label = f"on-demand vCPUs of {usage.name.localized_value or name}"
            if label is not None:
                yield Quota(label, region, float(usage.limit), float(usage.current_value))

    def _skus(self, region: str) -> dict[str, skus.Sku]:
        return skus.fetch(self._connections.client(), region, TYPES.__contains__)


def account(token: str) -> str:
    """The account that an access token names. The token is decoded without verification."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError):
        return "an unknown account"
    return str(claims.get("upn") or f"application {claims.get('appid')}")
