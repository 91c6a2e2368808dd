"""The service account of a controller's machine: made, with a role that allows what deploy/iam lists, if there is none.

An account that was there before is used as it is. Which ones were made here, their description says.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from perdure.controller.clouds.base import NotYet
from perdure.controller.clouds.faulting import Refused
from perdure.controller.clouds.gcp import faults
from perdure.controller.clouds.gcp.connections import Connections
from perdure.controller.clouds.gcp.standing import is_unheard_of

IAM_URL = "https://iam.googleapis.com"
RESOURCE_MANAGER_URL = "https://cloudresourcemanager.googleapis.com"
MADE = "Made by perdure controller up"
_ROLE = Path(__file__).with_name("controller_role.yaml")  # deploy/iam/gcp-controller.yaml
_ID = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")
_CONFLICT = 409


def account(connections: Connections, role: str) -> str:
    """The e-mail address of the account. `role`: that, or what comes before the @ in this project.

    Raises NotYet, and Refused for what can be no account's name.
    """
    if "@" in role:
        return role
    if not _ID.fullmatch(role):
        wrong = f"--role {role}: name a service account, by 6 to 30 of a-z, 0-9 and -, or by its e-mail address"
        raise Refused("invalid", wrong)
    project = connections.project
    domain, _, bare = project.rpartition(":")  # example.com:project
    email = f"{role}@{f'{bare}.{domain}' if domain else bare}.iam.gserviceaccount.com"
    found = _get(connections, f"projects/{project}/serviceAccounts/{email}")
    if found is None:
        told = {"displayName": "Perdure controller", "description": MADE}
        body = {"accountId": role, "serviceAccount": told}
        found = _make(connections, f"projects/{project}/serviceAccounts", body)
    if found.get("description") == MADE:
        _grant(connections, email, _give_role(connections, role.replace("-", "_")))
    return email


def _give_role(connections: Connections, id: str) -> str:
    """The full name of the project's role of that id, which allows what it should from now on."""
    parent = f"projects/{connections.project}"
    name, wanted = f"{parent}/roles/{id}", yaml.safe_load(_ROLE.read_text())
    found = _get(connections, name)
    if found is None:
        _make(connections, f"{parent}/roles", {"roleId": id, "role": wanted})
    elif found.get("deleted"):
        raise Refused(
            "invalid", f"{name} was deleted: `gcloud iam roles undelete {id} --project={connections.project}`"
        )
    elif set(found.get("includedPermissions", ())) != set(wanted["includedPermissions"]):
        changed = {"includedPermissions": wanted["includedPermissions"], "etag": found["etag"]}
        connections.call("PATCH", IAM_URL, f"/v1/{name}?updateMask=includedPermissions", changed)
    return name


def _grant(connections: Connections, email: str, role: str) -> None:
    """What others have granted stays; a change of theirs in between is heard of by the policy's etag."""
    path, member = f"/v3/projects/{connections.project}", f"serviceAccount:{email}"
    options = {"options": {"requestedPolicyVersion": 3}}
    policy = connections.call("POST", RESOURCE_MANAGER_URL, f"{path}:getIamPolicy", options)
    bindings: list[dict[str, Any]] = policy.get("bindings", [])
    own = next((one for one in bindings if one["role"] == role and "condition" not in one), None)
    if own is not None and member in own.get("members", ()):
        return
    if own is None:
        own = {"role": role, "members": []}
        bindings = [*bindings, own]
    own["members"] = [*own.get("members", ()), member]
    try:
        body = {"policy": {**policy, "bindings": bindings}}
        connections.call("POST", RESOURCE_MANAGER_URL, f"{path}:setIamPolicy", body)
    except Exception as error:
        if is_unheard_of(error) or getattr(error, "code", None) == _CONFLICT:
            raise NotYet(str(error)) from error
        raise


def _make(connections: Connections, among: str, body: dict[str, Any]) -> dict[str, Any]:
    """Raises NotYet for what is there although it was not found: that, too, is told slowly."""
    try:
        made: dict[str, Any] = connections.call("POST", IAM_URL, f"/v1/{among}", body)
    except Exception as error:
        if getattr(error, "code", None) == _CONFLICT:
            raise NotYet(str(error)) from error
        raise
    return made


def _get(connections: Connections, name: str) -> dict[str, Any] | None:
    """None if it is not there."""
    try:
        told: dict[str, Any] = connections.call("GET", IAM_URL, f"/v1/{name}")
    except Exception as error:
        if faults.code_of(error) not in faults.MISSING:
            raise
        return None
    return told
