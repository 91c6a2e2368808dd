"""Whose a machine is, as it is written on it: tags, labels, whatever its cloud calls names with values."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.controller.clouds.base import Owner


def written(owner: Owner, prefix: str) -> dict[str, str]:
    """The tags that say it; `prefix` is what their names begin with."""
    return {
        f"{prefix}controller": owner.controller,
        f"{prefix}job": str(owner.job_id),
        f"{prefix}task": str(owner.task),
        f"{prefix}generation": str(owner.generation),
        f"{prefix}token": owner.token,
    }


def read(tags: Mapping[str, str], prefix: str) -> Owner | None:
    """Whose the machine is that carries these tags; None if they do not say."""
    try:
        return Owner(
            controller=tags[f"{prefix}controller"],
            job_id=int(tags[f"{prefix}job"]),
            task=int(tags[f"{prefix}task"]),
            generation=int(tags[f"{prefix}generation"]),
            token=tags[f"{prefix}token"],
        )
    except (KeyError, ValueError):
        return None
