"""A small controller with the API of docs/reference/api.md over real HTTP, for tests of clients. It runs no jobs.

In a test: `with serving(tmp_path) as controller`. As a process: `python embedded_server.py serve --home DIR`.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]
Call = tuple[str, str, Any]  # (method, path with query, body or None)
TOKEN = "user-token"
SIGN_IN = "/api/v1/session/command-line/token"  # needs no token
NOW = "2026-11-21T02:00:00.000000Z"
FAILED = {f"FAILED{why}" for why in ("", "_SETUP", "_PRECHECKS", "_NO_RESOURCE", "_CONTROLLER")}
FINAL = {"SUCCEEDED", "CANCELLED", *FAILED}
FORECAST = {
    "unavailable_reason": None, "assumed": "observations of 3 offers", "runs": 20,
    "cost": {"mean": 12.5, "low": 10.0, "high": 20.25},
    "seconds": {"mean": 7500.0, "low": 7200.0, "high": 9000.0}, "late": 0.05,
}  # fmt: skip
OFFERS = [
    {"cloud": "local", "region": "local", "zone": f"local-{zone}", "instance_type": "local-4", "market": market,
     "price_per_hour": price, "on_demand_price_per_hour": 1.0, "vcpus": 4.0, "memory_gib": 16.0, "accelerators": None}
    for market, price in (("spot", 0.3), ("on-demand", 1.0)) for zone in "abc"
]  # fmt: skip


class Refusal(Exception):
    def __init__(self, status: int, message: str, where: str | None = None, fix: str = "") -> None:
        super().__init__(message)
        self.status, self.error = status, {"message": message, "where": where, "fix": fix}


@dataclass
class Controller:
    """The state behind the API. Change it through the methods, which wake up open streams."""

    home: Path
    url: str = ""
    version: str = "0.1.0"
    config_changed: bool = False
    jobs: dict[int, list[Json]] = field(default_factory=dict)  # task records by job id
    logs: dict[int, bytes] = field(default_factory=dict)  # job id → bytes
    keys: dict[str, int] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)
    configs: dict[int, list[Json]] = field(default_factory=dict)  # job id → task configurations as submitted
    timelines: dict[int, list[Json]] = field(default_factory=dict)
    attempts: dict[int, list[Json]] = field(default_factory=dict)
    clouds: list[Json] = field(default_factory=list)
    findings: dict[str, list[Json]] = field(default_factory=dict)  # of clouds, by name
    gpus: list[Json] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)  # to other calls, by path
    calls: list[Call] = field(default_factory=list)
    cut_log_at: list[int] = field(default_factory=list)  # absolute offsets at which a log's connection is broken off
    close_log_at: list[int] = field(default_factory=list)  # the same, but the stream ends cleanly
    busy: int = 0  # the number of submissions to reject as busy
    drop_answers: int = 0  # the number of submissions to accept without delivering the response
    end_status: str | None = None  # the status that a submitted job gets at once; None: it keeps running
    printed: bytes = b""  # the output of a submitted job
    signs_browsers_in: bool = True  # with a code
    changed: threading.Condition = field(default_factory=threading.Condition)
    stopping: threading.Event = field(default_factory=threading.Event)

    def add(self, *statuses: str, name: str = "train", printed: bytes = b"", **facts: Any) -> int:
        """A job with one task for each status; returns its id."""
        with self.changed:
            job_id = max(self.jobs, default=0) + 1
            self.jobs[job_id] = [
                record(job_id, index, len(statuses), name, status, **facts) for index, status in enumerate(statuses)
            ]
            self.logs[job_id] = printed
            self.changed.notify_all()
            return job_id

    def print(self, job_id: int, data: bytes) -> None:
        with self.changed:
            self.logs[job_id] += data
            self.changed.notify_all()

    def end(self, job_id: int, status: str = "SUCCEEDED", **facts: Any) -> None:
        with self.changed:
            for task in self.jobs[job_id]:
                task.update(status=status, ended_at="2026-11-21T01:10:00.000000Z", **facts)
            self.changed.notify_all()

    def wait_for_call(self, pattern: str, timeout_s: float = 20.0) -> Call:
        """Wait until a call `METHOD path?query` that matches has come in; returns it."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.called(pattern), timeout_s), (pattern, self.calls)
            return self.called(pattern)[-1]

    def called(self, pattern: str) -> list[Call]:
        return [call for call in self.calls if re.fullmatch(pattern, f"{call[0]} {call[1]}")]


def record(job_id: int, index: int, count: int, name: str, status: str, **facts: Any) -> Json:
    return {
        "job_id": job_id, "task_index": index, "num_tasks": count, "name": name,
        "task_name": f"{name}-{index}" if count > 1 else name, "status": status, "reason": None, "message": None,
        "task_id": f"sky-managed-2026-11-21-01-02-03-000004_{name}_{job_id}-{index}", "user": "ada", "priority": 0,
        "submitted_at": "2026-11-21T01:02:03.000004Z", "started_at": "2026-11-21T01:03:00.000000Z", "ended_at": None,
        "job_duration_s": 432.0, "total_duration_s": 500.0, "recovery_count": 2, "restarts_on_errors": 0,
        "resources": "1x[V100:1][spot]", "cluster_resources": "1x p3.2xlarge", "num_nodes": 1, "cloud": "aws",
        "region": "us-east-1", "zone": "us-east-1a", "market": "spot", "generation": 3, "cost_usd": 0.42,
        "on_demand_cost_usd": 1.4, "exit_code": None, "cleanup": None, **facts,
    }  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    controller: Controller

    def log_message(self, *_: object) -> None:
        pass

    def do(self) -> None:
        parts = urlsplit(self.path)
        self.query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        size = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(size)
        self.note()
        try:
            if parts.path == "/healthz":
                return self.answer({"status": "ok"})
            if self.headers.get("Authorization") != f"Bearer {TOKEN}" and parts.path != SIGN_IN:
                raise Refusal(401, "the token is not known", fix="look into PERDURE_HOME/token")
            for (method, pattern), call in ROUTES.items():
                if method == self.command and (match := re.fullmatch("/api/v1" + pattern, parts.path)):
                    return call(self, *match.groups())
            if parts.path in self.controller.answers:
                return self.answer(self.controller.answers[parts.path])
            raise Refusal(404, f"there is no {parts.path}")
        except Refusal as refusal:
            self.answer({"error": refusal.error}, refusal.status)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_HEAD = do

    def note(self) -> None:
        with self.controller.changed:
            body = json.loads(self.body) if self.body and "json" in self.headers.get("Content-Type", "") else None
            self.controller.calls.append((self.command, self.path, body))
            self.controller.changed.notify_all()

    def answer(self, value: object, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == 503:
            self.send_header("Retry-After", "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def about(self) -> None:
        state = self.controller
        self.answer(getattr(state, "behind", {}) | {
            "version": state.version, "id": "c-1", "pid": os.getpid(), "started_at": "2026-11-21T01:00:00.000000Z",
            "home": str(state.home), "endpoint": state.url, "jobs": self.counts(), "probes": None,
            "config_changed": state.config_changed,
        })  # fmt: skip

    def stop(self) -> None:
        self.answer({"status": "stopping"})
        self.controller.stopping.set()

    def sign_in_code(self) -> None:
        if not self.controller.signs_browsers_in:
            raise Refusal(403, "this command line signs no browser in")
        self.answer({"code": "one-time-code", "valid_s": 60.0}, 201)

    def controller_log(self) -> None:
        self.stream_of(b"controller line 1\ncontroller line 2\n")

    def cloud_list(self, of: str | None = None) -> None:
        self.answer(self.controller.clouds if of is None else self.controller.findings.get(of, []))

    def gpu_list(self) -> None:
        name = self.query.get("name")
        self.answer([one for one in self.controller.gpus if name in (None, one["accelerator"])])

    def put_upload(self, digest: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != digest:
            raise Refusal(400, "the digest differs from the content's")
        known = digest in self.controller.uploads
        gzip.decompress(self.body)
        self.controller.uploads[digest] = self.body
        self.answer({}, 200 if known else 201)

    def head_upload(self, digest: str) -> None:
        self.answer({}, 200 if digest in self.controller.uploads else 404)

    def checked(self) -> Json:
        body: Json = json.loads(self.body)
        for index, task in enumerate(body["tasks"]):
            if "no such gpu" in json.dumps(task):
                raise Refusal(400, "no cloud sells this GPU", f"tasks[{index}].resources", "perdure check")
            if isinstance(task.get("workdir"), str):
                raise Refusal(400, "workdir was not uploaded", f"tasks[{index}].workdir")
        return body

    def plan(self) -> None:
        checked = self.checked()
        foreseen = FORECAST if checked.get("forecast") else None
        tasks = [
            {"name": task.get("name") or "task", "num_nodes": task.get("num_nodes") or 1, "offers": OFFERS,
             "total_offers": 9, "saving": 0.7, "unavailable": ["local-c spot: no capacity until 01:20"],
             "strategy": "VALUE", "strategy_reason": "the 3 cheapest were seen", "forecast": foreseen}
            for task in checked["tasks"]
        ]  # fmt: skip
        planned = {"tasks": tasks, "warnings": ["autostop has no meaning for a job"]}
        self.answer(planned | {"num_jobs": checked.get("num_jobs") or self.controller.answers.get("sweep", 1)})

    def submit(self) -> None:
        state, body = self.controller, self.checked()
        state.busy, was_busy = max(0, state.busy - 1), state.busy
        if was_busy:
            raise Refusal(503, "the controller has fallen behind")
        for task in body["tasks"]:
            workdir = task.get("workdir")
            if workdir and "upload" in workdir and workdir["upload"] not in state.uploads:
                raise Refusal(400, "the workdir's upload is not here")
        with state.changed:
            if body["key"] not in state.keys:
                name = body["name"] or "unnamed"
                status = state.end_status or "PENDING"
                job_id = state.add(*[status for _ in body["tasks"]], name=name, printed=state.printed)
                state.keys[body["key"]] = job_id
                state.configs[job_id] = body["tasks"]
        if state.drop_answers:
            state.drop_answers -= 1
            self.close_connection = True
            return
        job_id = state.keys[body["key"]]
        tasks = state.jobs[job_id]
        ids = [task["task_id"] for task in tasks]
        self.answer(
            {"job_id": job_id, "job_ids": [job_id], "name": tasks[0]["name"], "task_ids": ids, "warnings": []}, 201
        )

    def list_jobs(self) -> None:
        query = self.query
        chosen = [
            task
            for job_id in sorted(self.controller.jobs, reverse=True)
            for task in self.controller.jobs[job_id]
            if ("before" not in query or job_id < int(query["before"]))
            and ("ids" not in query or str(job_id) in query["ids"].split(","))
            and ("name" not in query or fnmatchcase(task["name"], query["name"]))
            and ("status" not in query or task["status"] in query["status"].split(","))
            and (query.get("skip_finished") != "1" or task["status"] not in FINAL)
        ]
        ids = sorted({task["job_id"] for task in chosen}, reverse=True)[: int(query.get("limit", 50))]
        shown = [task for job_id in ids for task in self.controller.jobs[job_id]]
        counts = self.counts()
        self.answer({"now": NOW, "jobs": shown, "counts": counts, "total": sum(counts.values())})

    def counts(self) -> Counter[str]:
        return Counter(task["status"] for tasks in self.controller.jobs.values() for task in tasks)

    def known(self, job: str) -> int:
        if int(job) not in self.controller.jobs:
            raise Refusal(404, f"there is no job {job}")
        return int(job)

    def one_job(self, job: str) -> None:
        job_id, state = self.known(job), self.controller
        tasks = state.jobs[job_id]
        history = {"attempts": state.attempts.get(job_id, []), "timeline": state.timelines.get(job_id, [])}
        of_no_cluster = {"cluster": None, "cluster_job": None}
        self.answer({**tasks[0], "tasks": tasks, **history, **of_no_cluster, "now": NOW})

    def cancel(self) -> None:
        body, jobs = json.loads(self.body), self.controller.jobs
        if body["all"]:
            wanted = [job_id for job_id, tasks in jobs.items() if tasks[-1]["status"] not in FINAL]
        elif body["name"]:
            wanted = [job_id for job_id, tasks in jobs.items() if tasks[0]["name"] == body["name"]]
        else:
            wanted = body["ids"]
        sorted_out: dict[str, list[int]] = {"cancelled": [], "finished": [], "unknown": []}
        for job_id in wanted:
            ended = job_id in jobs and jobs[job_id][-1]["status"] in FINAL
            sorted_out["unknown" if job_id not in jobs else "finished" if ended else "cancelled"].append(job_id)
        self.answer(sorted_out)

    def preempt(self, job: str) -> None:
        task = self.controller.jobs[self.known(job)][0]
        if task["status"] != "RUNNING":
            raise Refusal(409, f"job {job} has no machine: it is {task['status']}", fix="wait until it runs")
        self.answer({"instance_id": "i-1", "zone": task["zone"]})

    def has_ended(self, job_id: int, query: Mapping[str, str]) -> bool:
        """Whether the attempt that is asked for has ended."""
        attempts = [
            one for one in self.controller.attempts.get(job_id, ()) if str(one["generation"]) == query.get("attempt")
        ]
        return bool(attempts) and all(one["state"] == "GONE" for one in attempts)

    def job_log(self, job: str) -> None:
        job_id, state, query = self.known(job), self.controller, self.query
        sent = int(query.get("offset", 0))
        if "tail" in query:
            assert "offset" not in query
            lines = state.logs[job_id].splitlines(keepends=True)
            sent = sum(map(len, lines[: -int(query["tail"])]))
        self.begin_stream({"Perdure-Offset": str(sent)})
        while True:
            with state.changed:
                ended = all(task["status"] in FINAL for task in state.jobs[job_id]) or self.has_ended(job_id, query)
                data = state.logs[job_id][sent:]
                if not data and not ended and query.get("follow") == "1":
                    state.changed.wait(0.2)
                    continue
            cut = next((at for at in state.cut_log_at if sent < at <= sent + len(data)), None)
            if cut is not None:
                state.cut_log_at.remove(cut)
                self.send_chunk(data[: cut - sent])
                self.close_connection = True
                return
            if not data:
                break
            self.send_chunk(data)
            sent += len(data)
            if sent in state.close_log_at:
                state.close_log_at.remove(sent)
                break
        self.wfile.write(b"0\r\n\r\n")

    def begin_stream(self, headers: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def send_chunk(self, data: bytes) -> None:
        if data:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def stream_of(self, data: bytes) -> None:
        self.begin_stream({})
        self.send_chunk(data)
        self.wfile.write(b"0\r\n\r\n")


ROUTES: dict[tuple[str, str], Callable[..., None]] = {
    ("GET", "/controller"): Handler.about,
    ("POST", "/controller/stop"): Handler.stop,
    ("POST", "/session/codes"): Handler.sign_in_code,
    ("GET", "/controller/logs"): Handler.controller_log,
    ("GET", "/clouds"): Handler.cloud_list,
    ("GET", "/clouds/([a-z]+)/findings"): Handler.cloud_list,
    ("GET", "/gpus"): Handler.gpu_list,
    ("PUT", "/uploads/([0-9a-f]{64})"): Handler.put_upload,
    ("HEAD", "/uploads/([0-9a-f]{64})"): Handler.head_upload,
    ("POST", "/plan"): Handler.plan,
    ("POST", "/jobs"): Handler.submit,
    ("GET", "/jobs"): Handler.list_jobs,
    ("GET", r"/jobs/(\d+)"): Handler.one_job,
    ("GET", r"/jobs/(\d+)/logs"): Handler.job_log,
    ("POST", "/jobs/cancel"): Handler.cancel,
    ("POST", r"/jobs/(\d+)/preempt"): Handler.preempt,
}


@contextlib.contextmanager
def serving(home: Path) -> Iterator[Controller]:
    """A controller that listens on a free loopback port as long as the block lasts."""
    state = Controller(home)
    handler = type("Bound", (Handler,), {"controller": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
