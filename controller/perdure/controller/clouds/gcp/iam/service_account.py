"""The service account of a controller's machine, created with the permissions of deploy/iam if there is none.

An existing account is not changed. Accounts that were created here are marked by their description.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.protocol import EventuallyConsistent
from perdure.controller.clouds.gcp import faults
from perdure.controller.clouds.gcp.controller_host import is_new_account_unknown
from perdure.controller.clouds.gcp.sdk.connections import GcpConnections

IAM_URL = "https://iam.googleapis.com"
RESOURCE_MANAGER_URL = "https://cloudresourcemanager.googleapis.com"
MADE = "Made by perdure controller up"
_ROLE = Path(__file__).with_name("controller_role.yaml")  # deploy/iam/gcp-controller.yaml
_ID = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")
_CONFLICT = 409


def account(connections: GcpConnections, role: str) -> str:
    """The e-mail address of the account. `role`: the address, or its part before the @ for an account of this project.

    Raises EventuallyConsistent, and CloudRejected for an invalid name.
    """
    if "@" in role:
        return role
    if not _ID.fullmatch(role):
        message = f"--role {role}: name a service account, by 6 to 30 of a-z, 0-9 and -, or by its e-mail address"
        raise CloudRejected("invalid", message)
    project = connections.project
    domain, _, bare = project.rpartition(":")  # example.com:project
    email = f"{role}@{f'{bare}.{domain}' if domain else bare}.iam.gserviceaccount.com"
    resource = _get(connections, f"projects/{project}/serviceAccounts/{email}")
    if resource is None:
        details = {"displayName": "Perdure controller", "description": MADE}
        body = {"accountId": role, "serviceAccount": details}
        resource = _create(connections, f"projects/{project}/serviceAccounts", body)
    if resource.get("description") == MADE:
        _grant(connections, email, _ensure_role(connections, role.replace("-", "_")))
    return email


def _ensure_role(connections: GcpConnections, id: str) -> str:
    """The full name of the project's role of that id, created or updated to the permissions of deploy/iam."""
    parent = f"projects/{connections.project}"
    name, wanted = f"{parent}/roles/{id}", yaml.safe_load(_ROLE.read_text())
    resource = _get(connections, name)
    if resource is None:
        _create(connections, f"{parent}/roles", {"roleId": id, "role": wanted})
    elif resource.get("deleted"):
        raise CloudRejected(
            "invalid", f"{name} was deleted: `gcloud iam roles undelete {id} --project={connections.project}`"
        )
    elif set(resource.get("includedPermissions", ())) != set(wanted["includedPermissions"]):
        changed = {"includedPermissions": wanted["includedPermissions"], "etag": resource["etag"]}
        connections.call("PATCH", IAM_URL, f"/v1/{name}?updateMask=includedPermissions", changed)
    return name


def _grant(connections: GcpConnections, email: str, role: str) -> None:
    """Grant the role, keeping other grants. The policy's etag detects concurrent changes."""
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
        if is_new_account_unknown(error) or getattr(error, "code", None) == _CONFLICT:
            raise EventuallyConsistent(str(error)) from error
        raise


def _create(connections: GcpConnections, among: str, body: dict[str, Any]) -> dict[str, Any]:
    """Raises EventuallyConsistent for a resource that exists but was not found a moment ago."""
    try:
        made: dict[str, Any] = connections.call("POST", IAM_URL, f"/v1/{among}", body)
    except Exception as error:
        if getattr(error, "code", None) == _CONFLICT:
            raise EventuallyConsistent(str(error)) from error
        raise
    return made


def _get(connections: GcpConnections, name: str) -> dict[str, Any] | None:
    """None if it does not exist."""
    try:
        resource: dict[str, Any] = connections.call("GET", IAM_URL, f"/v1/{name}")
    except Exception as error:
        if faults.code_of(error) not in faults.MISSING:
            raise
        return None
    return resource
