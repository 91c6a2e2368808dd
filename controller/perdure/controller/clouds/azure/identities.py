"""The identity of a controller's machine: made, with a role that allows what deploy/iam lists, if there is none.

An identity that was there before is used as it is. Which ones were made here, their tag says. It is the user's to
assign, and the only one of the machine, so that the machine needs to be told nothing of it:
learn.microsoft.com/entra/identity/managed-identities-azure-resources/managed-identities-faq
"""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

from perdure.controller.clouds.azure import faults
from perdure.controller.clouds.azure.connections import Connections
from perdure.controller.clouds.azure.launching import TAG
from perdure.controller.clouds.base import NotYet
from perdure.controller.clouds.faulting import Refused

IDENTITIES_API = "2023-01-31"
ROLES_API = "2022-04-01"
MADE_TAG, MADE = f"{TAG}made", "controller up"
_ROLE = Path(__file__).with_name("controller_role.json")  # deploy/iam/azure-controller.json
_FITS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{2,127}")
_IDS = uuid.UUID("0d3f3f0c-6a5e-5f0b-8d3d-5b8f2b6a7c11")
_TOLD_SLOWLY = ("PrincipalNotFound", "RoleDefinitionDoesNotExist")
_EXISTS = "RoleAssignmentExists"


def identity(connections: Connections, group: str, region: str, role: str) -> str:
    """The id of the identity. `role`: that, or its name in the group (a path). Raises NotYet, and Refused."""
    if role.startswith("/subscriptions/"):
        return role
    if not _FITS.fullmatch(role):
        wrong = f"--role {role}: name an identity, by 3 to 128 of A-Z, a-z, 0-9, - and _, or by its whole id"
        raise Refused("InvalidParameter", wrong)
    path = f"{group}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/{role}"
    found = connections.find(path, IDENTITIES_API)
    if found is None:
        body = {"location": region, "tags": {MADE_TAG: MADE}}
        found = connections.call("PUT", path, IDENTITIES_API, body)
    if (found.get("tags") or {}).get(MADE_TAG) == MADE:
        _grant(connections, found["properties"]["principalId"], _give_role(connections, role))
    return path


def _give_role(connections: Connections, name: str) -> str:
    """The id of the subscription's role for identities of that name, which allows what it should from now on.

    No two roles of a tenant have one name."""
    listed, scope = json.loads(_ROLE.read_text()), f"/subscriptions/{connections.subscription}"
    fields = ("actions", "notActions", "dataActions", "notDataActions")
    permissions = {field: listed[f"{field[0].upper()}{field[1:]}"] for field in fields}
    path = f"{scope}/providers/Microsoft.Authorization/roleDefinitions/{uuid.uuid5(_IDS, f'{scope}/{name}')}"
    found = connections.find(path, ROLES_API)
    if found is None or not _allows(found["properties"], permissions):
        properties = {
            "roleName": f"{listed['Name']} ({name} in {connections.subscription})",
            "description": listed["Description"],
            "type": "CustomRole",
            "permissions": [permissions],
            "assignableScopes": [scope],
        }
        connections.call("PUT", path, ROLES_API, {"properties": properties})
    return path


def _allows(told: dict[str, Any], wanted: dict[str, list[str]]) -> bool:
    granted = told.get("permissions") or []
    return len(granted) == 1 and all(set(granted[0].get(field) or ()) == set(wanted[field]) for field in wanted)


def _grant(connections: Connections, principal: str, role: str) -> None:
    """In the whole subscription: each region has a group of its own. Raises NotYet for what was made a moment ago."""
    id = uuid.uuid5(_IDS, f"{principal}{role}")
    path = f"/subscriptions/{connections.subscription}/providers/Microsoft.Authorization/roleAssignments/{id}"
    if connections.find(path, ROLES_API) is not None:
        return
    properties = {"roleDefinitionId": role, "principalId": principal, "principalType": "ServicePrincipal"}
    try:
        connections.call("PUT", path, ROLES_API, {"properties": properties})
    except Exception as error:
        code = faults.code_of(error)
        if code in _TOLD_SLOWLY:
            raise NotYet(str(error)) from error
        if code != _EXISTS:
            raise
