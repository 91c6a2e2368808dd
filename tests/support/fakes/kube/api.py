"""The verbs of the fake API server on its objects."""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from support.fakes.kube import admission
from support.fakes.kube.admission import condition, set_condition
from support.fakes.kube.faults import Faults
from support.fakes.kube.selectors import matches_fields, matches_labels
from support.fakes.kube.store import Object, Rejected, Store, timestamp

KINDS = {
    "pods": ("v1", "Pod"),
    "secrets": ("v1", "Secret"),
    "nodes": ("v1", "Node"),
    "events": ("v1", "Event"),
    "namespaces": ("v1", "Namespace"),
    "nodepools": ("karpenter.sh/v1", "NodePool"),
    "workloads": ("kueue.x-k8s.io/v1beta1", "Workload"),
    "networkpolicies": ("networking.k8s.io/v1", "NetworkPolicy"),
}
CUSTOM = {"nodepools", "workloads"}


class RouteLike(Protocol):
    @property
    def namespace(self) -> str | None: ...
    @property
    def resource(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def sub(self) -> str | None: ...


class KubeApi:
    """`settle`: lets the scheduler and the kubelets act; called after every change, with the lock held."""

    def __init__(self, store: Store, faults: Faults, settle: Callable[[], None]) -> None:
        self.store, self._faults, self._settle = store, faults, settle
        self.tokens: set[str] = set()
        self.custom_resources: set[str] = set()  # of CUSTOM, those whose definitions are installed
        self.foreign_finalizers_changed = 0  # by the client, which must never touch those of others
        #: API groups beside those of Kubernetes, with their versions.
        self.groups: dict[str, list[str]] = {}
        self.pending_workloads: Callable[[str], Object] = lambda _queue: {"items": []}
        self._pages: dict[str, tuple[list[Object], int]] = {}

    def answer(self, method: str, route: RouteLike, query: dict[str, str], body: bytes, content_type: str) -> Object:
        with self.store.lock:
            if route.resource == "selfsubjectaccessreviews":
                return self._access_review(json.loads(body))
            if route.resource == "localqueues" and route.sub == "pendingworkloads" and self.groups:
                return self.pending_workloads(str(route.name))
            if route.resource not in KINDS or (route.resource in CUSTOM - self.custom_resources):
                raise Rejected(404, "NotFound", "the server could not find the requested resource")
            content = json.loads(body) if body else {}
            match method:
                case "GET" if route.name:
                    return self.shown(self._get(route), route.resource)
                case "GET":
                    return self._list(route, query)
                case "POST" if route.sub == "eviction":
                    answer = self._evict(route, content)
                case "POST":
                    answer = self._create(route, content)
                case "PATCH":
                    answer = self._patch(route, content, content_type)
                case "DELETE":
                    answer = self._delete(route, content)
                case _:
                    raise Rejected(405, "MethodNotAllowed", f"{method} is not supported")
            self._settle()
            return answer

    def shown(self, one: Object, resource: str) -> Object:
        version, kind = KINDS[resource]
        return {"apiVersion": version, "kind": kind, **one}

    def api_groups(self) -> Object:
        """What `/apis` answers."""
        known = {"scheduling.k8s.io": ["v1"], "policy": ["v1"], **self.groups}
        listed = [
            {"name": name, "versions": [{"groupVersion": f"{name}/{one}", "version": one} for one in versions]}
            for name, versions in known.items()
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}

    def serves(self, group: str | None, version: str | None) -> bool:
        """Whether an installed API group has that version; those of Kubernetes itself have every one."""
        return group not in self.groups or version in self.groups[group]

    def forget_pages(self) -> None:
        """Let every continuation of a list expire."""
        self._pages.clear()

    # ---- verbs ----

    def _get(self, route: RouteLike) -> Object:
        assert route.name is not None
        return self.store.get(route.resource, route.namespace or "", route.name)

    def _list(self, route: RouteLike, query: dict[str, str]) -> Object:
        limit = int(query.get("limit") or 0)
        if token := query.get("continue"):
            if token not in self._pages:
                raise Rejected(410, "Expired", "The provided continue parameter is too old")
            found, version = self._pages.pop(token)
        else:
            everything = self.store.all(route.resource, route.namespace)
            found = [
                one
                for one in everything
                if matches_labels(one, query.get("labelSelector")) and matches_fields(one, query.get("fieldSelector"))
            ]
            version = self.store.version
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        page, rest = (found[:limit], found[limit:]) if limit else (found, [])
        if rest:
            metadata["continue"] = uuid.uuid4().hex
            self._pages[metadata["continue"]] = (rest, version)
        api_version, kind = KINDS[route.resource]
        return {"apiVersion": api_version, "kind": f"{kind}List", "metadata": metadata, "items": copy.deepcopy(page)}

    def _create(self, route: RouteLike, one: Object) -> Object:
        key = ("namespaces", "", route.namespace or "")
        if route.namespace and key not in self.store.objects:
            raise Rejected(404, "NotFound", f'namespaces "{route.namespace}" not found')
        admission.check(self.store, route.resource, one, self._faults)
        one = {name: value for name, value in one.items() if name not in ("apiVersion", "kind")}
        stored = self.store.create(
            route.resource, route.namespace or "", admission.with_defaults(route.resource, one, self._faults)
        )
        return self.shown(stored, route.resource)

    def _patch(self, route: RouteLike, patch: Any, content_type: str) -> Object:
        old = self._get(route)
        if content_type == "application/merge-patch+json":
            new = merge(copy.deepcopy(old), patch)
        elif content_type == "application/json-patch+json":
            new = _json_patched(copy.deepcopy(old), patch)
        else:
            raise Rejected(415, "UnsupportedMediaType", f"{content_type} is not supported")
        version = patch.get("metadata", {}).get("resourceVersion") if isinstance(patch, dict) else None
        if version not in (None, old["metadata"]["resourceVersion"]):
            raise Rejected(
                409, "Conflict", "the object has been modified; please apply your changes to the latest version"
            )
        if old["metadata"].get("finalizers") != new["metadata"].get("finalizers"):
            self.foreign_finalizers_changed += 1
        admission.check_update(route.resource, old, new)
        if new == old:
            return self.shown(copy.deepcopy(old), route.resource)
        return self.shown(self.store.update(route.resource, route.namespace or "", new), route.resource)

    def _delete(self, route: RouteLike, options: Object) -> Object:
        one = self._get(route)
        wanted = (options.get("preconditions") or {}).get("uid")
        if wanted not in (None, one["metadata"]["uid"]):
            raise Rejected(409, "Conflict", f"the UID in the precondition ({wanted}) does not match the UID in record")
        if route.resource != "pods":
            key = (route.resource, route.namespace or "", str(route.name))
            return self.shown(self.store.remove(key), route.resource)
        return self.shown(self._delete_pod(one, options.get("gracePeriodSeconds")), "pods")

    def _evict(self, route: RouteLike, eviction: Object) -> Object:
        pod = copy.deepcopy(self._get(route))
        set_condition(pod, condition("DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting"))
        self.store.update("pods", route.namespace or "", pod)
        options = eviction.get("deleteOptions") or {}
        self._delete_pod(self._get(route), options.get("gracePeriodSeconds"))
        return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}

    def _delete_pod(self, pod: Object, grace_s: int | None) -> Object:
        pod = copy.deepcopy(pod)
        metadata = pod["metadata"]
        if grace_s is None:
            grace_s = int(pod["spec"]["terminationGracePeriodSeconds"])
        if not pod["spec"].get("nodeName"):
            grace_s = 0
        if "deletionTimestamp" in metadata and grace_s >= metadata.get("deletionGracePeriodSeconds", 0):
            return pod
        metadata |= {"deletionTimestamp": timestamp(grace_s), "deletionGracePeriodSeconds": grace_s}
        return self.store.update("pods", metadata["namespace"], pod)

    def _access_review(self, review: Object) -> Object:
        wanted = review["spec"]["resourceAttributes"]
        resource = wanted["resource"] + (f"/{wanted['subresource']}" if wanted.get("subresource") else "")
        allowed = f"{wanted['verb']} {resource}" not in self._faults.forbid
        return {**review, "status": {"allowed": allowed}}


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    target = target if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = merge(target.get(name), value)
    return target


def _json_patched(target: Object, operations: list[Object]) -> Object:
    """RFC 6902: test, remove, replace and add of members of objects."""
    for operation in operations:
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        parent: Any = target
        for name in path:
            parent = parent[int(name)] if isinstance(parent, list) else parent[name]
        match operation["op"]:
            case "test" if parent.get(last) != operation["value"]:
                raise Rejected(422, "Invalid", "the server rejected our request due to an error in our request")
            case "remove" if last not in parent:
                raise Rejected(422, "Invalid", f"unable to remove nonexistent key: {last}")
            case "remove":
                del parent[last]
            case "add" | "replace":
                parent[last] = operation["value"]
    return target
