"""Keeps a task that mounts buckets away from the clouds whose machines cannot mount them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    *,
    num_nodes: int = 1,
) -> tuple[Candidate, ...]:
    """`placements` without those whose machines cannot mount the task's buckets.

    One that leaves the cloud open becomes one for each other cloud. `settings`: cloud → the task's `config.<cloud>`.
    Raises RequestRejected if none is left.
    """
    limited = [cloud for cloud in clouds.values() if isinstance(cloud, HasMountLimits)]
    left = tuple(placements)
    for mode, mount in {mount["mode"]: mount for mount in reversed(mounts) if mount["mode"] != "COPY"}.items():
        if not limited:
            break
        problems: list[str] = []
        wanted = _Wanted(clouds, settings, mode, num_nodes)
        left = tuple(one for placement in left for one in _able(placement, wanted, problems))
        if not left:
            raise RequestRejected(
                f"{mode} cannot be used here: {problems[0]}",
                where=f"file_mounts[{mount['path']}].mode",
                fix="write `mode: COPY` for data that is only read, name another cloud under resources.infra, or see "
                "docs/guides/clouds/kubernetes.md for what pods can mount",
            )
    return left


@dataclass(frozen=True)
class _Wanted:
    """What machines of these clouds must be able to mount."""

    clouds: Mapping[str, Cloud]
    settings: Mapping[str, Any]
    mode: str
    num_nodes: int


def _able(placement: Candidate, wanted_mount: _Wanted, problems: list[str]) -> Iterator[Candidate]:
    """`placement` for each of its clouds that can mount; what the others lack is added to `problems`."""
    wanted, clouds = placement.requirement, wanted_mount.clouds
    answers = {
        name: _problem(cloud, wanted.region, wanted_mount, wanted_mount.settings.get(name) or {})
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


def _problem(cloud: Cloud, region: str | None, wanted: _Wanted, settings: Mapping[str, Any]) -> str | None:
    if not isinstance(cloud, HasMountLimits):
        return None
    try:
        return cloud.mount_problem(region, settings, mode=wanted.mode, num_nodes=wanted.num_nodes)
    except SectionError as error:
        raise RequestRejected(error.message, where=error.where, fix=error.fix) from error
