"""The identity of a controller's machine, created with the permissions of deploy/iam if there is none.

An existing identity is not changed. Identities that were created here have a tag. The identity is user-assigned and the
machine's only one, so the machine finds it without configuration:
learn.microsoft.com/entra/identity/managed-identities-azure-resources/managed-identities-faq
"""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

from perdure.controller.clouds.azure import faults
from perdure.controller.clouds.azure.machines.launch_request import TAG
from perdure.controller.clouds.azure.sdk.connections import AzureConnections
from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.protocol import EventuallyConsistent

IDENTITIES_API = "2023-01-31"
ROLES_API = "2022-04-01"
MADE_TAG, MADE = f"{TAG}made", "controller up"
_ROLE = Path(__file__).with_name("controller_role.json")  # deploy/iam/azure-controller.json
_FITS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{2,127}")
_IDS = uuid.UUID("0d3f3f0c-6a5e-5f0b-8d3d-5b8f2b6a7c11")
_NOT_YET_PROPAGATED = ("PrincipalNotFound", "RoleDefinitionDoesNotExist")
_EXISTS = "RoleAssignmentExists"


def identity(connections: AzureConnections, group: str, region: str, role: str) -> str:
    """The id of the identity. `role`: the id, or a name in `group` (a path).

    Raises EventuallyConsistent, and CloudRejected for an invalid name.
    """
    if role.startswith("/subscriptions/"):
        return role
    if not _FITS.fullmatch(role):
        message = f"--role {role}: name an identity, by 3 to 128 of A-Z, a-z, 0-9, - and _, or by its whole id"
        raise CloudRejected("InvalidParameter", message)
    path = f"{group}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/{role}"
    resource = connections.find(path, IDENTITIES_API)
    if resource is None:
        body = {"location": region, "tags": {MADE_TAG: MADE}}
        resource = connections.call("PUT", path, IDENTITIES_API, body)
    if (resource.get("tags") or {}).get(MADE_TAG) == MADE:
        _grant(connections, resource["properties"]["principalId"], _ensure_role(connections, role))
    return path


def _ensure_role(connections: AzureConnections, name: str) -> str:
    """The id of the subscription's role for identities of that name, with the permissions of deploy/iam.

    Created or updated if necessary. Role names are unique within a tenant.
    """
    listed, scope = json.loads(_ROLE.read_text()), f"/subscriptions/{connections.subscription}"
    fields = ("actions", "notActions", "dataActions", "notDataActions")
    permissions = {field: listed[f"{field[0].upper()}{field[1:]}"] for field in fields}
    path = f"{scope}/providers/Microsoft.Authorization/roleDefinitions/{uuid.uuid5(_IDS, f'{scope}/{name}')}"
    definition = connections.find(path, ROLES_API)
    if definition is None or not _allows(definition["properties"], permissions):
        properties = {
            "roleName": f"{listed['Name']} ({name} in {connections.subscription})",
            "description": listed["Description"],
            "type": "CustomRole",
            "permissions": [permissions],
            "assignableScopes": [scope],
        }
        connections.call("PUT", path, ROLES_API, {"properties": properties})
    return path


def _allows(properties: dict[str, Any], wanted: dict[str, list[str]]) -> bool:
    granted = properties.get("permissions") or []
    return len(granted) == 1 and all(set(granted[0].get(field) or ()) == set(wanted[field]) for field in wanted)


def _grant(connections: AzureConnections, principal: str, role: str) -> None:
    """Grant the role in the whole subscription, since each region has its own group. Raises EventuallyConsistent."""
    id = uuid.uuid5(_IDS, f"{principal}{role}")
    path = f"/subscriptions/{connections.subscription}/providers/Microsoft.Authorization/roleAssignments/{id}"
    if connections.find(path, ROLES_API) is not None:
        return
    properties = {"roleDefinitionId": role, "principalId": principal, "principalType": "ServicePrincipal"}
    try:
        connections.call("PUT", path, ROLES_API, {"properties": properties})
    except Exception as error:
        code = faults.code_of(error)
        if code in _NOT_YET_PROPAGATED:
            raise EventuallyConsistent(str(error)) from error
        if code != _EXISTS:
            raise
