"""An instance's owner as name-value pairs: tags, labels, or the cloud's equivalent."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.controller.clouds.base.protocol import Owner


def to_tags(owner: Owner, prefix: str) -> dict[str, str]:
    """The owner as tags whose names begin with `prefix`."""
    return {
        f"{prefix}controller": owner.controller,
        f"{prefix}job": str(owner.job_id),
        f"{prefix}task": str(owner.task),
        f"{prefix}generation": str(owner.generation),
        f"{prefix}token": owner.token,
    }


def from_tags(tags: Mapping[str, str], prefix: str) -> Owner | None:
    """The owner that these tags name; None if they name none."""
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
