"""What tab completion suggests for the values of arguments and options. It starts no controller, and never fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from perdure.sdk.connection import api_types
    from perdure.sdk.connection.client import Client

_MAX_JOBS = 200  # the newest ones
_TIMEOUT_S = 1.0

Suggest = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shell suggests files."""
    return [CompletionItem(incomplete, type="file")]


def directories(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shell suggests directories."""
    return [CompletionItem(incomplete, type="dir")]


def job_ids(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The IDs of the newest jobs, with name and status."""
    first = {job["job_id"]: job for job in reversed(_jobs())}
    items = [CompletionItem(str(id), help=f"{job['name']} {job['status']}") for id, job in reversed(first.items())]
    return [item for item in items if item.value.startswith(incomplete)]


def unfinished_job_ids(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """As `job_ids`, for jobs that have not ended."""
    first = {job["job_id"]: job for job in reversed(_jobs(skip_finished=True))}
    items = [CompletionItem(str(id), help=f"{job['name']} {job['status']}") for id, job in reversed(first.items())]
    return [item for item in items if item.value.startswith(incomplete)]


def nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What `ssh` can enter: jobs that have not ended, and clusters."""
    return [*unfinished_job_ids(ctx, param, incomplete), *clusters(ctx, param, incomplete)]


def job_names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of the newest jobs."""
    return _starting_with(incomplete, [job["name"] for job in _jobs()])


def clusters(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The clusters, with their statuses."""
    from perdure.sdk import clusters as sdk_clusters
    from perdure.sdk.connection.endpoint import ClientError

    client = _client()
    try:
        listed = sdk_clusters.clusters(client=client) if client else []
    except ClientError:
        return []
    return [CompletionItem(one["name"], help=one["status"]) for one in listed if one["name"].startswith(incomplete)]


def services(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The services, with their statuses."""
    from perdure.sdk import serve
    from perdure.sdk.connection.endpoint import ClientError

    client = _client()
    try:
        services = serve.status(client=client) if client else []
    except ClientError:
        return []
    return [CompletionItem(one["name"], help=one["status"]) for one in services if one["name"].startswith(incomplete)]


def statuses(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The statuses, also after a comma."""
    from perdure.recovery.statuses import Status

    before, comma, last = incomplete.rpartition(",")
    return _starting_with(before + comma + last.upper(), [before + comma + status for status in Status])


def strategies(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The recovery strategies."""
    from perdure.sdk.spec.resource_fields import STRATEGIES

    return _starting_with(incomplete.upper(), STRATEGIES)


def clouds(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The clouds of installed packages."""
    from perdure.sdk.connection.installation import installed_clouds

    return _starting_with(incomplete, sorted(installed_clouds()))


def ignorable(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The fields that `--ignore` takes."""
    from perdure.sdk.spec.overrides import IGNORABLE

    return _starting_with(incomplete, IGNORABLE)


def _starting_with(incomplete: str, words: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(word) for word in dict.fromkeys(words) if word.startswith(incomplete)]


def _jobs(*, skip_finished: bool = False) -> Sequence[api_types.Job]:
    """The newest jobs, newest first; none if no controller answers at once."""
    from perdure.sdk.connection.endpoint import ClientError

    client = _client()
    try:
        return client.jobs(limit=_MAX_JOBS, skip_finished=skip_finished)["jobs"] if client else []
    except ClientError:
        return []


def _client() -> Client | None:
    """A client of the controller; None if none answers at once."""
    from perdure.sdk.connection import discovery
    from perdure.sdk.connection.client import Client
    from perdure.sdk.connection.endpoint import ClientError
    from perdure.sdk.connection.health import is_healthy

    try:
        target = discovery.find()
        return Client(target) if target is not None and is_healthy(target, timeout_s=_TIMEOUT_S) else None
    except ClientError:
        return None
