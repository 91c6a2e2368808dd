"""Keeps a task that mounts buckets away from the clouds whose machines cannot mount them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perdure.controller.clouds.base.config_section import SectionError
from perdure.controller.clouds.base.protocol import Cloud, HasMountLimits
from perdure.controller.submit.errors import RequestRejected
from perdure.recovery.market.slot_queue import SLOT_CLOUD
from perdure.sdk.requirements import Candidate


def able_to_mount(
    placements: Sequence[Candidate],
    mounts: Sequence[Mapping[str, Any]],
    clouds: Mapping[str, Cloud],
    settings: Mapping[str, Any],
) -> tuple[Candidate, ...]:
    """`placements` without those whose machines cannot mount the task's buckets.

    One that leaves the cloud open becomes one for each other cloud. `settings`: cloud → the task's `config.<cloud>`.
    Raises RequestRejected if none is left.
    """
    mounted = next((mount for mount in mounts if mount["mode"] != "COPY"), None)
    limited = [cloud for cloud in clouds.values() if isinstance(cloud, HasMountLimits)]
    if mounted is None or not limited:
        return tuple(placements)
    problems: list[str] = []
    left = [one for placement in placements for one in _able(placement, clouds, settings, problems)]
    if left:
        return tuple(left)
    raise RequestRejected(
        f"{mounted['mode']} cannot be used here: {problems[0]}",
        where=f"file_mounts[{mounted['path']}].mode",
        fix="write `mode: COPY` for data that is only read, name another cloud under resources.infra, or see "
        "docs/guides/clouds/kubernetes.md for a shared volume",
    )


def _able(
    placement: Candidate, clouds: Mapping[str, Cloud], settings: Mapping[str, Any], problems: list[str]
) -> Iterator[Candidate]:
    """`placement` for each of its clouds that can mount; what the others lack is added to `problems`."""
    wanted = placement.requirement
    answers = {
        name: _problem(cloud, wanted.region, settings.get(name) or {})
        for name, cloud in clouds.items()
        if wanted.cloud in (None, name) and name != SLOT_CLOUD
    }
    causes = [problem for problem in answers.values() if problem is not None]
    problems += causes
    if not causes:
        yield placement
        return
    for name, problem in answers.items():
        if problem is None:
            yield replace(placement, requirement=replace(wanted, cloud=name))


def _problem(cloud: Cloud, region: str | None, settings: Mapping[str, Any]) -> str | None:
    if not isinstance(cloud, HasMountLimits):
        return None
    try:
        return cloud.mount_problem(region, settings)
    except SectionError as error:
        raise RequestRejected(error.message, where=error.where, fix=error.fix) from error
