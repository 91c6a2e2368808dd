"""Shows the task of a service without its secrets, and puts them back into an update that was made of that text."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from perdure.controller.runtime.security.secret_refs import mask_secrets, resolve_secrets, without_credentials
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.requester import Requester
from perdure.sdk.spec.values.variables import FIELDS_WITH_REFERENCES as WITH_REFERENCES

_SECRETS = "secrets"


def without_secrets(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The task with `${NAME}` in place of the values of its secrets, and the names of these."""
    secrets = _secrets_of(config)
    shown = {
        name: mask_secrets(value, secrets) if name in WITH_REFERENCES else value
        for name, value in config.items()
        if name != _SECRETS
    }
    workdir = shown.get("workdir")
    if isinstance(workdir, Mapping) and "url" in workdir:
        shown["workdir"] = {**workdir, "url": without_credentials(workdir["url"], secrets)[0]}
    return shown, sorted(secrets)


def with_kept_secrets(
    config: Mapping[str, Any], earlier: Mapping[str, Any], names: Collection[str], *, owner: str, by: Requester
) -> dict[str, Any]:
    """A task with those of the earlier one's secrets that it does not have itself. Raises RequestRejected.

    The program of the new task can read them. So a user can keep their own, and an administrator everybody's.
    """
    own = _secrets_of(config)
    kept = {name: value for name, value in _secrets_of(earlier).items() if name in names and name not in own}
    if not kept:
        return dict(config)
    if by.for_owner and by.user != owner and not by.may_run_callbacks:
        fix = f"give the values of {', '.join(sorted(kept))}"
        raise RequestRejected(f"the secrets of this service are those of {owner}", where="secrets", fix=fix, status=403)
    resolved = {
        name: resolve_secrets(value, kept) if name in WITH_REFERENCES else value for name, value in config.items()
    }
    return {**resolved, _SECRETS: {**kept, **own}}


def _secrets_of(config: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in (config.get(_SECRETS) or {}).items()}
