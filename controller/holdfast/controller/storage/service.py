from __future__ import annotations
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from holdfast.sdk import buckets
from holdfast.controller.acting import Outcome, Later
from holdfast.recovery import events


@dataclass
class Plan:
    uploads: list = field(default_factory=list)
    mounts: list = field(default_factory=list)
    buckets: list = field(default_factory=list)


class StorageService:
    def __init__(self, settings, database, uploads, clock):
        self.root = settings.home / "local" / "buckets"
        self.db = database

    def plan(self, file_mounts):
        p = Plan()
        for path, what in file_mounts.items():
            if isinstance(what, dict) and "upload" in what:
                p.uploads.append({"path": path, **what})
                continue
            if isinstance(what, str):
                what = {"source": what, "mode": "COPY"}
            uri = buckets.parse(what["source"]) if what.get("source") else buckets.BucketURI("LOCAL", what["name"])
            p.mounts.append(
                {
                    "path": path,
                    "mode": what.get("mode", "MOUNT"),
                    "bucket": uri.bucket,
                    "prefix": uri.prefix,
                    "read_only": False,
                    "store": "local",
                    "options": {},
                }
            )
            p.buckets.append({"bucket": uri.bucket})
        return p

    def node_mounts(self, mounts, cloud):
        return [{**m, "rclone": {"type": "local", "root": "/run/holdfast/buckets"}} for m in mounts]

    def prepare(self, intent):
        from sqlalchemy import select
        from holdfast.controller.store.jobs import Task

        with self.db.connect() as c:
            spec = c.execute(
                select(Task.c.spec).where(Task.c.job_id == intent.job_id, Task.c.index == intent.task)
            ).scalar_one()
        for b in spec["buckets"]:
            (self.root / b["bucket"]).mkdir(parents=True, exist_ok=True)
        return Outcome("ready", events.StorageReady(intent.task))

    def remove(self, intent):
        return Outcome("removed", events.Tick())
