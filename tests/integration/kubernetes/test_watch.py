"""A watch follows the server's objects through gaps, lost history, broken connections and errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from perdure.controller.clouds.kubernetes.api.client import ApiClient
from perdure.controller.clouds.kubernetes.api.errors import ApiError, ConnectionBroken
from perdure.controller.clouds.kubernetes.api.kubeconfig import Kubeconfig
from perdure.controller.clouds.kubernetes.api.watch import Object, ObjectWatch, list_objects
from support.fakes.kube import FakeKube
from support.fakes.kube.cluster import NAMESPACE
from support.helpers.timing import wait_until

SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"


class Follower:
    """A watch on a thread of its own, and what it reported."""

    def __init__(self, kube: FakeKube) -> None:
        self.client = ApiClient(Kubeconfig(kube.environ).access(kube.context))
        self.path = f"/api/v1/namespaces/{kube.namespace}/secrets"
        self.changes: list[str] = []
        self.errors: list[Exception] = []
        self.watch = ObjectWatch(lambda: self.client, self.path, self._note, labelSelector="mine=yes")
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        wait_until(self.watch.is_synced.is_set, "the first list", 10)

    def stop(self) -> None:
        self._stopped.set()

    def names(self) -> list[str]:
        return sorted(one["metadata"]["name"] for one in self.watch.snapshot())

    def create(self, name: str, mine: str = "yes") -> None:
        self.client.post(self.path, {"metadata": {"name": name, "labels": {"mine": mine}}})

    def delete(self, name: str) -> None:
        self.client.delete(f"{self.path}/{name}")

    def _note(self, old: Object | None, new: Object | None) -> None:
        kind = "+" if old is None else "-" if new is None else "~"
        self.changes.append(kind + (new or old or {})["metadata"]["name"])

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.watch.run_once()
            except (ApiError, ConnectionError) as error:
                self.errors.append(error)
                self._stopped.wait(0.05)


@pytest.fixture
def follower(kube: FakeKube) -> Iterator[Follower]:
    follower = Follower(kube)
    yield follower
    follower.stop()


def test_changes__are_reported_in_order(follower: Follower) -> None:
    follower.create("a")
    follower.start()
    follower.create("b")
    follower.create("foreign", mine="no")
    follower.client.patch(f"{follower.path}/b", {"metadata": {"annotations": {"x": "1"}}})
    follower.delete("a")
    wait_until(lambda: "-a" in follower.changes, "the deletion", 10)
    assert follower.changes == ["+a", "+b", "~b", "-a"]
    assert follower.names() == ["b"]


def test_object__whose_label_changes_leaves_the_watch(follower: Follower) -> None:
    follower.create("a")
    follower.start()
    follower.client.patch(f"{follower.path}/a", {"metadata": {"labels": {"mine": "no"}}})
    wait_until(lambda: follower.changes == ["+a", "-a"], "the removal", 10)


def test_lost_history__is_bridged_by_a_list_that_finds_deletions(kube: FakeKube, follower: Follower) -> None:
    for name in ("a", "b"):
        follower.create(name)
    follower.start()
    kube.faults.silent = True  # the watch is cut off while things happen
    with kube.store.lock:
        kube.store.remove(("secrets", NAMESPACE, "a"))
        kube.store.create("secrets", NAMESPACE, {"metadata": {"name": "c", "labels": {"mine": "yes"}}})
        kube.store.compact()
    kube.faults.silent = False
    wait_until(lambda: follower.names() == ["b", "c"], "the list after 410", 10)
    assert sorted(follower.changes) == ["+a", "+b", "+c", "-a"]
    assert not follower.errors


def test_connection__that_breaks_within_an_event_loses_nothing(kube: FakeKube, follower: Follower) -> None:
    follower.start()
    kube.faults.cut_watches = 1
    follower.create("a")
    wait_until(lambda: follower.names() == ["a"], "the object after the broken event", 10)
    assert any(isinstance(error, ConnectionBroken) for error in follower.errors)


def test_bookmarks__keep_an_idle_watch_young(kube: FakeKube, follower: Follower) -> None:
    follower.start()
    version = kube.store.version
    with kube.store.lock:
        kube.store.create("pods", NAMESPACE, {"metadata": {"name": "p"}, "spec": {}, "status": {"phase": "Failed"}})
    wait_until(lambda: int(follower.watch._version or 0) > version, "a bookmark", 10)


def test_list__goes_page_by_page_and_begins_again_when_its_continuation_expires(
    kube: FakeKube, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.controller.clouds.kubernetes.api.watch.PAGE_SIZE", 2)
    for number in range(5):
        follower.create(f"s{number}")
    listed, _ = list_objects(follower.client, SECRETS)
    assert [one["metadata"]["name"] for one in listed] == [f"s{number}" for number in range(5)]
    assert kube.calls["GET secrets"] == 3
    kube.faults.answers["GET secrets"] = []
    original = kube.api.answer
    calls = iter(range(100))

    def forgetful(*arguments: object) -> Object:
        if next(calls) == 1:
            kube.api.forget_pages()
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(kube.api, "answer", forgetful)
    listed, _ = list_objects(follower.client, SECRETS)
    assert len(listed) == 5


def test_error_answers__are_raised_to_the_caller(kube: FakeKube, follower: Follower) -> None:
    kube.faults.answers["GET secrets"] = [(503, "etcd is down")]
    with pytest.raises(ApiError, match="etcd is down"):
        follower.watch.run_once()
