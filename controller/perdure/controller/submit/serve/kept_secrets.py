"""Shows the task of a service without its secrets, and puts them back into an update that was made of that text."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from perdure.controller.runtime.security.secret_refs import (
    GIT_CREDENTIALS,
    mask_secrets,
    resolve_secrets,
    without_credentials,
)
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.requester import Requester
from perdure.sdk.spec.values.variables import FIELDS_WITH_REFERENCES as WITH_REFERENCES

_SECRETS = "secrets"
_PLACEHOLDER = f"${{{GIT_CREDENTIALS}}}@"


def without_secrets(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The task with `${NAME}` in place of the values of its secrets, and the names of these. `${workdir.url}` stands
    for the user and password of a git URL."""
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
    """A task with those of the earlier one's secrets that it does not have itself, and with the earlier user and
    password in place of `${workdir.url}`. Raises RequestRejected.

    The program of the new task can read them. So a user can keep their own, and an administrator everybody's.
    """
    own = _secrets_of(config)
    kept = {name: value for name, value in _secrets_of(earlier).items() if name in names and name not in own}
    is_url_kept = refers_to_credentials(config)
    if not kept and not is_url_kept:
        return dict(config)
    credentials = _credentials_of(earlier) if is_url_kept else None
    if is_url_kept and credentials is None:
        refuse_placeholder(config)
    if by.for_owner and by.user != owner and not by.may_run_callbacks:
        missing = [*sorted(kept), *(["the user and password in workdir.url"] if is_url_kept else [])]
        fix = f"give the values of {', '.join(missing)}"
        raise RequestRejected(f"the secrets of this service are those of {owner}", where="secrets", fix=fix, status=403)
    resolved = {
        name: resolve_secrets(value, kept) if name in WITH_REFERENCES else value for name, value in config.items()
    }
    if credentials is not None:
        url = _url_of(resolved).replace(_PLACEHOLDER, f"{credentials}@", 1)
        resolved["workdir"] = {**resolved["workdir"], "url": url}
    return {**resolved, **({_SECRETS: {**kept, **own}} if kept else {})}


def refers_to_credentials(config: Mapping[str, Any]) -> bool:
    """Whether `${workdir.url}` stands for the user and password in the git URL of a task."""
    return _PLACEHOLDER in _url_of(config)


def refuse_placeholder(config: Mapping[str, Any]) -> None:
    """Raises RequestRejected if `${workdir.url}` stands for a user and password that nobody knows."""
    if refers_to_credentials(config):
        raise RequestRejected(
            f"{_PLACEHOLDER[:-1]} stands for the user and password of an earlier version, which has none",
            where="workdir.url",
            fix="write them, or the ${NAME} of a secret, into the URL",
        )


def _credentials_of(config: Mapping[str, Any]) -> str | None:
    """The user and password that are written in the git URL of a task."""
    secrets = _secrets_of(config)
    return without_credentials(mask_secrets(_url_of(config), secrets), secrets)[1]


def _url_of(config: Mapping[str, Any]) -> str:
    workdir = config.get("workdir")
    url = workdir.get("url") if isinstance(workdir, Mapping) else None
    return url if isinstance(url, str) else ""


def _secrets_of(config: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in (config.get(_SECRETS) or {}).items()}
