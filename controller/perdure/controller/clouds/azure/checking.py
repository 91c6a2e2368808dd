"""What the subscription allows: who calls, what they may do, which regions sell what, and what quotas have left."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from perdure.controller.clouds.azure import faults, permissions, skus
from perdure.controller.clouds.azure.catalog import TYPES
from perdure.controller.clouds.azure.connections import Connections
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.checks import Finding, Look, Outcome, Quota, look_through, quotas, side_by_side
from perdure.controller.clouds.checks import permissions as permission_findings

PERMISSIONS_API = "2022-04-01"
ROLE_FIX = "give it the role of deploy/iam/azure-controller.json in this subscription"
STORAGE_FIX = "if you use containers or queues: give that role in their storage account, unless it has it already"
QUOTA_FIX = "ask for more under Quotas in Azure's portal, or use other machines or regions"
SKU_FIX = "leave the region out of azure.regions, or ask Azure's support to open it for the subscription"

CORES = "on-demand vCPUs of all sizes"
SPOT_CORES = "spot vCPUs of all sizes"


class Checking:
    """`regions`: those that are used. Asks when it is told to, and remembers nothing."""

    def __init__(self, settings: AzureSettings, connections: Connections, regions: Callable[[], Sequence[str]]) -> None:
        self._settings = settings
        self._connections = connections
        self._regions = regions

    def findings(self) -> list[Finding]:
        """See `Checkable.check`."""
        return look_through(
            Look("credentials", self._who, "correct the credentials: see the README, Azure"),
            (
                Look("permissions", self._permissions, ROLE_FIX),
                Look("regions", self._sold, ROLE_FIX),
                Look("quotas", self._quotas, ROLE_FIX),
            ),
            faults.classify,
        )

    def _who(self) -> Iterator[Finding]:
        who = account(self._connections.token())
        yield Finding("credentials", Outcome.OK, f"{who} in subscription {self._connections.subscription}")

    def _permissions(self) -> Iterator[Finding]:
        """Of the subscription as a whole: what is granted in single resource groups is not told here."""
        path = f"/subscriptions/{self._connections.subscription}/providers/Microsoft.Authorization/permissions"
        granted = self._connections.call("GET", path, PERMISSIONS_API).get("value", [])
        found = list(permissions.wanted(self._settings))
        yield from permission_findings(found, permissions.missing((one.name for one in found), granted), ROLE_FIX)
        yield from self._of_storage(granted)

    def _of_storage(self, granted: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
        """Roles are often given in the storage account, of which is not told: what is missing may be there."""
        has_key = bool(os.environ.get("AZURE_STORAGE_KEY"))
        actions = [] if has_key else list(permissions.wanted_of_containers())
        data = [] if has_key else list(permissions.wanted_of_blobs())
        data += permissions.wanted_of_messages(self._settings)
        missing = permissions.missing((one.name for one in actions), granted)
        missing |= permissions.missing((one.name for one in data), granted, of_data=True)
        there = sum(one.name not in missing for one in [*actions, *data])
        if there:
            text = f"{there} of {len(actions) + len(data)} that buckets and queues use are there"
            yield Finding("permissions", Outcome.OK, text)
        for one in [*actions, *data]:
            if one.name in missing:
                text = f"{one.name} is not given in the subscription as a whole: {one.lets}"
                yield Finding("permissions", Outcome.UNKNOWN, text, STORAGE_FIX)

    def _sold(self) -> Iterator[Finding]:
        regions = self._regions()
        told = dict(side_by_side(lambda region: [(region, self._skus(region))], regions))
        for region, sold in told.items():
            barred = sorted(one.name for one in sold.values() if not one.may_be_had)
            if len(barred) == len(sold):
                yield Finding("regions", Outcome.LIMITS, f"{region} sells this subscription nothing", SKU_FIX)
            elif barred:
                text = f"{region} sells {len(sold) - len(barred)} of {len(TYPES)} sizes; closed to this subscription: "
                yield Finding("regions", Outcome.OK, text + ", ".join(barred))
            else:
                yield Finding("regions", Outcome.OK, f"{region} sells {len(sold)} of {len(TYPES)} sizes")

    def _quotas(self) -> list[Finding]:
        told = side_by_side(self._quotas_of, self._regions())
        told.sort(key=lambda one: (one.name not in (SPOT_CORES, CORES), one.name))
        return list(quotas(told, QUOTA_FIX))

    def _quotas_of(self, region: str) -> Iterator[Quota]:
        """Spot machines of all families count in one quota; the others in that of their family too."""
        with_gpus = {one.family for one in self._skus(region).values() if TYPES[one.name].accelerators}
        for one in self._connections.client().usage.list(region):
            name = str(one.name.value or "")
            words = {"cores": CORES, "lowprioritycores": SPOT_CORES}.get(name.lower())
            if words is None and name.lower() in with_gpus:
                words = f"on-demand vCPUs of {one.name.localized_value or name}"
            if words is not None:
                yield Quota(words, region, float(one.limit), float(one.current_value))

    def _skus(self, region: str) -> dict[str, skus.Sku]:
        return skus.of_region(self._connections.client(), region, TYPES.__contains__)


def account(token: str) -> str:
    """Whose access token it is, by what it says of itself; nobody else is asked, and nothing is verified."""
    try:
        middle = token.split(".")[1]
        told = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
    except (IndexError, ValueError):
        return "an account that does not say its name"
    return str(told.get("upn") or f"application {told.get('appid')}")
