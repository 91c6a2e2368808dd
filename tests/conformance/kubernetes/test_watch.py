"""A watch of a real API server: history that etcd has forgotten, restarts, bookmarks, pages."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from integration.kubernetes.test_watch import (
    Follower,
    test_changes__are_reported_in_order,
    test_object__whose_label_changes_leaves_the_watch,
)
from perdure.controller.clouds.kubernetes.api.client import ApiClient
from perdure.controller.clouds.kubernetes.api.errors import ApiError
from perdure.controller.clouds.kubernetes.api.watch import list_objects
from support.helpers.timing import wait_until
from support.real_kube import RealKube, Servers

pytestmark = pytest.mark.kubernetes

__all__ = [
    "test_changes__are_reported_in_order",
    "test_object__whose_label_changes_leaves_the_watch",
]


@pytest.fixture
def follower(servers: Servers, kube: RealKube) -> Iterator[Follower]:
    """As somebody who may watch Secrets: the controller may not."""
    of = SimpleNamespace(environ=servers.environ, context="real", namespace=kube.namespace)
    follower = Follower(of)  # type: ignore[arg-type]
    yield follower
    follower.stop()


def test_deletion__while_the_server_and_its_history_were_lost_is_noticed(servers: Servers, follower: Follower) -> None:
    """The server restarts with an empty cache, and etcd has forgotten the version that the watch continues from."""
    for name in ("a", "b"):
        follower.create(name)
    follower.start()
    follower.delete("a")
    follower.create("c")
    servers.restart_api_server()
    servers.compact()
    follower.delete("b")
    wait_until(lambda: follower.names() == ["c"], "the list after the gap", 10)
    assert sorted(set(follower.changes)) == ["+a", "+b", "+c", "-a", "-b"]


def test_version_that_is_forgotten__is_answered_by_410(servers: Servers, follower: Follower) -> None:
    follower.create("a")
    version = list_objects(follower.client, follower.path)[1]
    for number in range(30):
        follower.create(f"later-{number}")
    servers.compact()
    servers.restart_api_server()
    events = follower.client.watch(follower.path, silence_s=30.0, resourceVersion=version)
    try:
        first: dict[str, Any] = next(events)
        assert (first["type"], first["object"]["code"]) == ("ERROR", 410)
    except ApiError as error:
        assert error.status == 410  # noqa: PT017 - either is an answer


def test_bookmark__keeps_an_idle_watch_young(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.controller.clouds.kubernetes.api.watch.WATCH_S", 6)
    follower.start()
    version = follower.watch._version
    follower.create("foreign", mine="no")
    wait_until(lambda: follower.watch._version not in (version, None), "a bookmark", 30)
    assert not follower.changes
    assert not follower.errors


def test_list__begins_again_when_its_continuation_is_forgotten(
    servers: Servers, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.controller.clouds.kubernetes.api.watch.PAGE_SIZE", 2)
    for number in range(5):
        follower.create(f"s{number}")
    original, pages = ApiClient.get_page, []

    def get_page(client: ApiClient, path: str, reduce: Any, **query: Any) -> dict[str, Any]:
        pages.append(query.get("continue"))
        page = original(client, path, reduce, **query)
        if len(pages) == 1:
            follower.create("s5")
            servers.compact()
        return page

    monkeypatch.setattr(ApiClient, "get_page", get_page)
    listed, _ = list_objects(follower.client, follower.path, labelSelector="mine=yes")
    assert [one["metadata"]["name"] for one in listed] == [f"s{number}" for number in range(6)]
    assert pages[1] is not None, "the second page was asked for, and refused"
