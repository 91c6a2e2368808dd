"""The project's IAM: service accounts, roles, and the policy."""

from __future__ import annotations

from typing import Any

from support.fakes import google_account
from support.fakes.gce.discovery import Call, Invalid
from support.fakes.gce.faults import Faults
from support.fakes.gce.fleet import PROJECT


class Iam:
    """Answers calls of IAM."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.accounts: dict[str, dict[str, Any]] = {}  # by e-mail
        self.roles: dict[str, dict[str, Any]] = {}  # by full name
        owner = {"role": "roles/owner", "members": [f"serviceAccount:{google_account.email(PROJECT)}"]}
        self.policy: dict[str, Any] = {"version": 1, "etag": "BwAAAAAAAAA=", "bindings": [owner]}
        self._changes = 0

    def answer(self, call: Call) -> dict[str, Any]:
        """Raises Invalid."""
        match call.method.removeprefix("projects."):
            case "serviceAccounts.get":
                return _get(self.accounts, call.parameters["name"].rpartition("/")[2])
            case "serviceAccounts.create":
                return self._create_account(call)
            case "roles.get":
                return _get(self.roles, call.parameters["name"])
            case "roles.create":
                name = f"{call.parameters['parent']}/roles/{call.body['roleId']}"
                if name in self.roles:
                    raise Invalid(409, "alreadyExists", f"A role named {name} already exists.")
                self.roles[name] = {**call.body["role"], "name": name, "etag": "BwBBBBBBBBB="}
                return self.roles[name]
            case "roles.patch":
                assert call.parameters["updateMask"] == "includedPermissions"
                return self._patch(call)
            case "getIamPolicy":
                return self.policy
            case "setIamPolicy":
                return self._set_policy(call.body["policy"])
            case other:
                raise Invalid(501, "notImplemented", f"the fake has no {other}")

    def grants(self, email: str) -> set[str]:
        """The permissions of the account, by the custom roles of the project."""
        held = [one["role"] for one in self.policy["bindings"] if f"serviceAccount:{email}" in one["members"]]
        return {one for name in held if name in self.roles for one in self.roles[name]["includedPermissions"]}

    def has_listed(self, email: str) -> bool:
        """Whether other services find the account, which may take some calls after its creation."""
        if email not in self.accounts:
            return False
        if self._faults.accounts_listed_slowly > 0:
            self._faults.accounts_listed_slowly -= 1
            return False
        return True

    def _create_account(self, call: Call) -> dict[str, Any]:
        email = f"{call.body['accountId']}@{PROJECT}.iam.gserviceaccount.com"
        if email in self.accounts:
            raise Invalid(409, "alreadyExists", f"Service account {call.body['accountId']} already exists")
        name = f"projects/{PROJECT}/serviceAccounts/{email}"
        self.accounts[email] = {**call.body.get("serviceAccount", {}), "name": name, "email": email}
        return self.accounts[email]

    def _patch(self, call: Call) -> dict[str, Any]:
        role = _get(self.roles, call.parameters["name"])
        if call.body.get("etag", role["etag"]) != role["etag"]:
            raise Invalid(409, "aborted", "There were concurrent policy changes.")
        role["includedPermissions"] = call.body["includedPermissions"]
        return role

    def _set_policy(self, policy: dict[str, Any]) -> dict[str, Any]:
        if policy.get("etag") != self.policy["etag"]:
            raise Invalid(
                409, "aborted", "There were concurrent policy changes. Please retry the whole read-modify-write"
            )
        for member in {one for binding in policy["bindings"] for one in binding["members"]}:
            kind, _, email = member.partition(":")
            if kind == "serviceAccount" and email != google_account.email(PROJECT) and not self.has_listed(email):
                raise Invalid(400, "badRequest", f"Service account {email} does not exist.")
        self._changes += 1
        self.policy = {**policy, "etag": f"BwCCCCCCC{self._changes:02d}="}
        return self.policy


def _get(resources: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    if name not in resources:
        raise Invalid(404, "notFound", f"{name} was not found.")
    return resources[name]
