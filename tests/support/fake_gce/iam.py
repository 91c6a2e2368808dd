"""Who may do what in the project: service accounts, roles, and its policy."""

from __future__ import annotations

from typing import Any

import google_account
from fake_gce.discovery import Call, Invalid
from fake_gce.faults import Faults
from fake_gce.fleet import PROJECT


class Iam:
    """`accounts`: e-mail → as it was made. `roles`: by their full names. `policy`: the project's."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.accounts: dict[str, dict[str, Any]] = {}
        self.roles: dict[str, dict[str, Any]] = {}
        owner = {"role": "roles/owner", "members": [f"serviceAccount:{google_account.email(PROJECT)}"]}
        self.policy: dict[str, Any] = {"version": 1, "etag": "BwAAAAAAAAA=", "bindings": [owner]}
        self._changes = 0

    def answer(self, call: Call) -> dict[str, Any]:
        """Raises Invalid."""
        match call.method.removeprefix("projects."):
            case "serviceAccounts.get":
                return _found(self.accounts, call.parameters["name"].rpartition("/")[2])
            case "serviceAccounts.create":
                return self._create_account(call)
            case "roles.get":
                return _found(self.roles, call.parameters["name"])
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
        """What the account may do by roles of the project's own."""
        held = [one["role"] for one in self.policy["bindings"] if f"serviceAccount:{email}" in one["members"]]
        return {one for name in held if name in self.roles for one in self.roles[name]["includedPermissions"]}

    def knows(self, email: str) -> bool:
        """Whether the account is known where machines are made: some calls after it was made."""
        if email not in self.accounts:
            return False
        if self._faults.accounts_told_slowly > 0:
            self._faults.accounts_told_slowly -= 1
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
        found = _found(self.roles, call.parameters["name"])
        if call.body.get("etag", found["etag"]) != found["etag"]:
            raise Invalid(409, "aborted", "There were concurrent policy changes.")
        found["includedPermissions"] = call.body["includedPermissions"]
        return found

    def _set_policy(self, policy: dict[str, Any]) -> dict[str, Any]:
        if policy.get("etag") != self.policy["etag"]:
            raise Invalid(
                409, "aborted", "There were concurrent policy changes. Please retry the whole read-modify-write"
            )
        for member in {one for binding in policy["bindings"] for one in binding["members"]}:
            kind, _, email = member.partition(":")
            if kind == "serviceAccount" and email != google_account.email(PROJECT) and not self.knows(email):
                raise Invalid(400, "badRequest", f"Service account {email} does not exist.")
        self._changes += 1
        self.policy = {**policy, "etag": f"BwCCCCCCC{self._changes:02d}="}
        return self.policy


def _found(among: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    if name not in among:
        raise Invalid(404, "notFound", f"{name} was not found.")
    return among[name]
