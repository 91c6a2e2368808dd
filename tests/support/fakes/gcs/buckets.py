"""Buckets and objects in memory, and the API's methods on them."""

from __future__ import annotations

import base64
import hashlib
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from support.fakes.google_discovery import Call, Invalid

_WHEN = "2026-01-01T00:00:00.000Z"


@dataclass
class Object:
    resource: dict[str, Any]
    content: bytes


@dataclass
class Bucket:
    resource: dict[str, Any]
    objects: dict[str, Object] = field(default_factory=dict)

    @property
    def is_uniform(self) -> bool:
        settings = self.resource.get("iamConfiguration", {}).get("uniformBucketLevelAccess", {})
        return bool(settings.get("enabled", False))


class Buckets:
    """All buckets. `url` returns that of the server."""

    def __init__(self, url: Callable[[], str]) -> None:
        self.buckets: dict[str, Bucket] = {}
        self.others: set[str] = set()  # names of buckets that belong to other projects
        self.page = 1000  # how many rows a listing has at most
        self.lock = threading.RLock()
        self._url = url
        self._generations = itertools.count(1_700_000_000_000_000)

    def answer(self, call: Call) -> dict[str, Any]:
        """Answer a call other than an upload (`insert`) or a download (`object`). Raises Invalid."""
        methods: dict[str, Callable[[Call], dict[str, Any]]] = {
            "buckets.insert": self._insert_bucket,
            "buckets.get": lambda call: self.bucket(call.parameters["bucket"]).resource,
            "buckets.delete": self._delete_bucket,
            "objects.get": lambda call: self.object(call).resource,
            "objects.list": self._list,
            "objects.delete": self._delete,
            "objects.patch": self._patch,
            "objects.compose": self._compose,
            "objects.copy": self._copy,
            "objects.rewrite": self._rewrite,
        }
        if call.method not in methods:
            raise Invalid(501, "notImplemented", f"the fake has no {call.method}")
        with self.lock:
            return methods[call.method](call)

    def bucket(self, name: str) -> Bucket:
        if name in self.others:
            raise Invalid(403, "forbidden", f"no access to {name}")
        if name not in self.buckets:
            raise Invalid(404, "notFound", "The specified bucket does not exist.")
        return self.buckets[name]

    def object(self, call: Call) -> Object:
        bucket, name = self.bucket(call.parameters["bucket"]), call.parameters["object"]
        stored = bucket.objects.get(name)
        generation = call.parameters.get("generation")
        if stored is None or generation not in (None, stored.resource["generation"]):
            raise Invalid(404, "notFound", f"No such object: {bucket.resource['name']}/{name}")
        return stored

    def insert(self, call: Call, content: bytes) -> dict[str, Any]:
        """Store an object. Raises Invalid."""
        with self.lock:
            name = call.parameters.get("name") or call.body.get("name")
            if not name:
                raise Invalid(400, "required", "Required")
            bucket = self.bucket(call.parameters["bucket"])
            self._expect(call, bucket.objects.get(name))
            digest = base64.b64encode(hashlib.md5(content).digest()).decode()
            if call.body.get("md5Hash", digest) != digest:
                raise Invalid(400, "invalid", "Provided MD5 hash does not match calculated MD5 hash.")
            return self._put(bucket, name, content, call.body).resource

    def _put(self, bucket: Bucket, name: str, content: bytes, resource_fields: dict[str, Any]) -> Object:
        base, generation = f"{self._url()}/storage/v1", str(next(self._generations))
        holder = bucket.resource["name"]
        resource = {
            "kind": "storage#object",
            "id": f"{holder}/{name}/{generation}",
            "name": name,
            "bucket": holder,
            "generation": generation,
            "metageneration": "1",
            "contentType": resource_fields.get("contentType", "application/octet-stream"),
            "size": str(len(content)),
            "md5Hash": base64.b64encode(hashlib.md5(content).digest()).decode(),
            "timeCreated": _WHEN,
            "updated": _WHEN,
            "storageClass": "STANDARD",
            "selfLink": f"{base}/b/{holder}/o/{quote(name, safe='')}",
            "mediaLink": f"{self._url()}/download/storage/v1/b/{holder}/o/{quote(name, safe='')}"
            f"?generation={generation}&alt=media",
        }
        if resource_fields.get("metadata"):
            resource["metadata"] = resource_fields["metadata"]
        bucket.objects[name] = Object(resource, content)
        return bucket.objects[name]

    @staticmethod
    def _expect(call: Call, current: Object | None) -> None:
        expected = call.parameters.get("ifGenerationMatch")
        if expected is not None and expected != (current.resource["generation"] if current else "0"):
            raise Invalid(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")

    def _insert_bucket(self, call: Call) -> dict[str, Any]:
        name = call.body.get("name", "")
        if name in self.others:
            raise Invalid(409, "conflict", "The requested bucket name is not available.")
        if name in self.buckets:
            raise Invalid(409, "conflict", "Your previous request to create the named bucket succeeded.")
        settings = call.body.get("iamConfiguration", {}).get("uniformBucketLevelAccess", {"enabled": False})
        resource = {
            "kind": "storage#bucket",
            "id": name,
            "name": name,
            "location": call.body.get("location", "US").upper(),
            "iamConfiguration": {"uniformBucketLevelAccess": settings},
            "timeCreated": _WHEN,
        }
        self.buckets[name] = Bucket(resource)
        return resource

    def _delete_bucket(self, call: Call) -> dict[str, Any]:
        bucket = self.bucket(call.parameters["bucket"])
        if bucket.objects:
            raise Invalid(409, "conflict", "The bucket you tried to delete is not empty.")
        del self.buckets[call.parameters["bucket"]]
        return {}

    def _list(self, call: Call) -> dict[str, Any]:
        parameters = call.parameters
        bucket = self.bucket(parameters["bucket"])
        prefix, delimiter = parameters.get("prefix", ""), parameters.get("delimiter", "")
        rows: dict[str, Object | None] = {}  # None for a prefix
        for name in sorted(bucket.objects):
            if not name.startswith(prefix):
                continue
            head, has_more, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            rows[prefix + head + delimiter if has_more else name] = None if has_more else bucket.objects[name]
        after, limit = bytes.fromhex(parameters.get("pageToken", "")).decode(), self.page
        remaining = [(name, row) for name, row in rows.items() if name > after]
        page = remaining[: min(int(parameters.get("maxResults", limit)), limit)]
        answer: dict[str, Any] = {"kind": "storage#objects"}
        if items := [row.resource for _, row in page if row is not None]:
            answer["items"] = items
        if prefixes := [name for name, row in page if row is None]:
            answer["prefixes"] = prefixes
        if len(page) < len(remaining):
            answer["nextPageToken"] = page[-1][0].encode().hex()
        return answer

    def _delete(self, call: Call) -> dict[str, Any]:
        self._expect(call, self.object(call))
        del self.buckets[call.parameters["bucket"]].objects[call.parameters["object"]]
        return {}

    def _patch(self, call: Call) -> dict[str, Any]:
        stored = self.object(call)
        stored.resource = {**stored.resource, **call.body}
        return stored.resource

    def _compose(self, call: Call) -> dict[str, Any]:
        bucket = self.bucket(call.parameters["destinationBucket"])
        name = call.parameters["destinationObject"]
        self._expect(call, bucket.objects.get(name))
        parts = []
        for source in call.body["sourceObjects"]:
            if source["name"] not in bucket.objects:
                raise Invalid(404, "notFound", f"Object {source['name']} not found.")
            parts.append(bucket.objects[source["name"]].content)
        return self._put(bucket, name, b"".join(parts), call.body.get("destination", {})).resource

    def _copy(self, call: Call) -> dict[str, Any]:
        parameters = call.parameters
        source = self.bucket(parameters["sourceBucket"]).objects.get(parameters["sourceObject"])
        if source is None:
            raise Invalid(404, "notFound", f"No such object: {parameters['sourceBucket']}/{parameters['sourceObject']}")
        bucket = self.bucket(parameters["destinationBucket"])
        resource_fields = {**source.resource, **call.body}
        return self._put(bucket, parameters["destinationObject"], source.content, resource_fields).resource

    def _rewrite(self, call: Call) -> dict[str, Any]:
        made = self._copy(call)
        return {
            "kind": "storage#rewriteResponse",
            "done": True,
            "objectSize": made["size"],
            "totalBytesRewritten": made["size"],
            "resource": made,
        }
