"""Six real jobs on a daemon that dies repeatedly: trained, preempted, cancelled, failed, and cleaned up.

The outcome is checked against the records that the workloads wrote and the cloud's record of its machines, never
against the controller alone.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from perdure.sdk.connection.client import ApiError, Client, ConnectionLost
from perdure.sdk.files import uploads
from support.helpers.service_manager import ServiceManager
from support.worlds.crash_clouds import World

WORK = Path(__file__).resolve().parents[2] / "crash" / "work"
NOTICE_S = 3.0
HOST_DEATH = "local_machines.ended"  # reached only if the host of a local machine was killed
STATUSES = {
    "scratch": "SUCCEEDED",
    "healthy": "SUCCEEDED",
    "noticed": "SUCCEEDED",
    "killed": "SUCCEEDED",
    "cancelled": "CANCELLED",
    "fails": "FAILED",
}


class Scenario:
    """Runs the six jobs in `home`, with a daemon that dies as planned."""

    def __init__(self, home: Path, plan: Sequence[str], *, world: type[World], orphan: bool = False) -> None:
        self._kill_orphans_host = HOST_DEATH in plan
        home.mkdir(mode=0o700)
        self.home = home
        self.world = world(home)
        # A job is preempted until the daemon has died often enough, so nothing limits how often it recovers.
        (home / "config.yaml").write_text(self.world.config + "limits: {recoveries_per_hour: null}\n")
        self.orphan = orphan or self._kill_orphans_host
        self.jobs: dict[str, int] = {}
        self.task_ids: dict[str, str] = {}
        self.keeper = ServiceManager(home, plan, environ=self.world.environ)

    # --- what happens -----------------------------------------------------------------------------------

    def play(self, *, wait_for_deaths: bool = False, every_death: bool = True) -> None:
        """Run from the first submission until everything is quiet. `wait_for_deaths`: no job ends before all planned
        deaths. `every_death`: all planned deaths must have happened at the end.
        """
        until = self.keeper.until
        self.submit_all()
        if self.orphan:
            controller = self.keeper.ask(lambda client: client.controller())["id"]
            self.world.launch_orphan(controller, kill_host=self._kill_orphans_host)
        until(lambda: len({(r["job"], r["rank"]) for r in self.record("begin")}) == 7, "every workload to begin")
        while self.keeper.must_be_killed:
            self.keeper.kill()
        self.interrupt("noticed", notice_s=NOTICE_S)
        until(lambda: self.durable_step("killed"), "a checkpoint in the bucket")
        self.interrupt("killed", notice_s=None)
        self.cancel("cancelled")
        for name in ("noticed", "killed"):
            until(lambda name=name: len(self.record("begin", name)) == 2, f"{name} to go on elsewhere")
        until(lambda: self.job("cancelled")["status"] == "CANCELLED", "the end of the cancelled job")
        if wait_for_deaths:
            until(lambda: self.keeper.is_done, "every death")
        (self.world.judge / "finish").touch()
        until(lambda: self.statuses() == STATUSES, lambda: f"every job's right end, but {self.statuses()}")
        until(lambda: self.keeper.is_done or not every_death, "every death")
        until(self.is_quiet, lambda: f"quiet, but {self.unsettled()} {self.world.living_machines()} are left")

    def submit_all(self) -> None:
        scratch = {"name": "crash-scratch", "mode": "MOUNT", "persistent": False}
        trained = {"name": "crash-checkpoints", "mode": "MOUNT_CACHED"}
        for name in STATUSES:
            kind = name if name in ("fails", "scratch") else "train"
            task: dict[str, Any] = {"name": name, "run": f"exec python3 work.py {kind}", "workdir": str(WORK)}
            task |= {"resources": {"use_spot": True, **self.world.where}, "envs": {"JUDGE": self.world.judge_on_node}}
            match name:
                case "cancelled":
                    task["num_nodes"] = 2
                case "scratch":
                    task["file_mounts"] = {"/scratch": {**scratch, "store": self.world.store}}
                case "healthy" | "noticed" | "killed":
                    task["file_mounts"] = {"/checkpoint": {**trained, "store": self.world.store}}
            reported = self.keeper.ask(lambda client, name=name, task=task: submit(client, name, task))
            self.jobs[name], self.task_ids[name] = reported["job_id"], reported["task_ids"][0]

    def interrupt(self, name: str, *, notice_s: float | None) -> None:
        """Have the cloud take the job's machine: once, however often the daemon has to be asked."""
        machine = self.record("begin", name)[0]["machine"]

        def was_asked() -> bool:
            if not self.world.was_interrupted(machine):
                # The machine shows whether a failed call had an effect.
                with contextlib.suppress(ConnectionLost, ApiError):
                    self.world.interrupt(self.keeper.client, self.jobs[name], machine, notice_s=notice_s)
            return self.world.was_interrupted(machine)

        self.keeper.until(was_asked, f"the preemption of {name}")

    def cancel(self, name: str) -> None:
        self.keeper.ask(lambda client: client.cancel(ids=[self.jobs[name]], grace_s=10))

    def close(self) -> None:
        """End everything that still runs."""
        self.keeper.stop()
        self.world.close()
        self.keeper.failure = ""
        self.keeper.until(lambda: not self.world.living_machines(), "the end of every machine")

    # --- what is seen -----------------------------------------------------------------------------------

    def statuses(self) -> dict[str, str]:
        return {name: self.job(name)["status"] for name in STATUSES}

    def job(self, name: str) -> dict[str, Any]:
        return dict(self.keeper.ask(lambda client: client.job(self.jobs[name])))

    def durable_step(self, name: str) -> int:
        """The newest checkpoint of the job's first machine that the controller recorded as durable; 0 if none."""
        shown, first = self.job(name), self.record("begin", name)[0]["machine"]
        at = next(a["generation"] for a in shown["attempts"] for n in a["nodes"] if n["instance_id"] == first)
        reported = [e for e in shown["timeline"] if e["kind"] == "checkpoint.durable" and e["generation"] == at]
        return max((e["data"]["step"] for e in reported), default=0)

    def record(self, event: str, name: str | None = None) -> list[dict[str, Any]]:
        """The events that the workloads recorded, in order."""
        path = self.world.judge / "record"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [r for r in lines if r["event"] == event and (name is None or r["job"] == self.jobs[name])]

    def unsettled(self) -> list[Any]:
        """Jobs and intents that the controller has not completed."""
        with sqlite3.connect(f"file:{self.home / 'perdure.db'}?mode=ro", uri=True) as db:
            jobs = db.execute("SELECT id FROM job WHERE NOT finalized").fetchall()
            return jobs + db.execute("SELECT job_id, kind FROM intent WHERE done_at IS NULL").fetchall()

    def is_quiet(self) -> bool:
        return not self.unsettled() and not self.world.living_machines()

    # --- what must be so --------------------------------------------------------------------------------

    def check(self) -> None:
        """Check everything that must hold whatever died."""
        assert not self.record("twice"), "two workloads of a task at a time"
        assert self.keeper.ask(lambda client: client.jobs())["total"] == len(STATUSES), "submitted once each"
        for name in STATUSES:
            shown = self.job(name)
            begins = self.record("begin", name)
            assert {r["task_id"] for r in begins} == {shown["task_id"]} == {self.task_ids[name]}
            machines = {n["instance_id"]: (a["generation"], n["rank"]) for a in shown["attempts"] for n in a["nodes"]}
            taken = {machines[m][0] for m in machines if m and self.world.was_interrupted(m)}
            assert shown["recovery_count"] == len(taken) == (name in ("noticed", "killed")), "preemptions, and no more"
            ran = {machines[r["machine"]] for r in begins}
            assert len(ran) == len(begins) == len(taken) + shown["num_nodes"], "each workload was started once"
            self._check_progress(name, shown)
            self._check_logs(shown, machines)
        assert not self.world.has_bucket("crash-scratch"), "the bucket that was not to persist"
        assert self.world.has_bucket("crash-checkpoints")
        self._check_nothing_is_left()

    def _check_progress(self, name: str, shown: dict[str, Any]) -> None:
        """Check that attempts resume from durable steps, and that each checkpoint is reported once."""
        begins, ends = self.record("begin", name), {r["machine"]: r for r in self.record("end", name)}
        for before, after in itertools.pairwise(begins):
            if shown["num_nodes"] == 1 and before["machine"] in ends:
                assert after["step"] == ends[before["machine"]]["step"], "with a notice, nothing is lost"
            if before["machine"] in ends:
                assert before["pid"] == ends[before["machine"]]["pid"]
        reported = [e for e in shown["timeline"] if e["kind"].startswith("checkpoint.")]
        lines = [(e["kind"], e["generation"], e["rank"], json.dumps(e["data"])) for e in reported]
        assert len(lines) == len(set(lines)), "a checkpoint is reported once"
        if shown["recovery_count"]:
            assert begins[-1]["step"] >= self.durable_step(name), "what is in the bucket is not lost"

    def _check_logs(self, shown: dict[str, Any], machines: dict[str, tuple[int, int]]) -> None:
        """Check that the stored log is what was printed: all of it, unless the machine was gone too early."""
        kept_lines = 0
        ended = {n["instance_id"] for a in shown["attempts"] for n in a["nodes"] if n["phase"] == "ended"}
        for begin in self.record("begin", shown["name"]):
            generation, rank = machines[begin["machine"]]
            path = self.home / "logs" / str(shown["job_id"]) / "0" / str(generation) / f"{rank}.log"
            kept = path.read_bytes() if path.exists() else b""
            printed = (self.world.judge / f"{begin['machine']}.printed").read_bytes()
            assert printed.startswith(kept), f"{path}: {kept!r}"
            could_tell = begin["machine"] in ended and not self.world.was_cut_off(begin["machine"])
            assert kept == printed or not could_tell, f"{path} lacks {printed[len(kept) :]!r}"
            kept_lines += kept.count(b"\n")
        with self.keeper.client.logs(shown["job_id"], follow=False) as stream:
            transcript = b"".join(stream).decode()
        output = re.findall(r"^(?:\(rank \d\) )?(?:step \d+|this job is: \w+)$", transcript, re.MULTILINE)
        assert len(output) == kept_lines, transcript

    def _check_nothing_is_left(self) -> None:
        mounts = Path("/proc/mounts").read_text()
        assert str(self.home) not in mounts
        lines = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
        left = [line for line in lines if str(self.home) in line and "perdure.controller serve" not in line]
        assert not left


def submit(client: Client, name: str, task: dict[str, Any]) -> dict[str, Any]:
    """Submit as `perdure jobs launch` does. The idempotency key makes a repeat harmless."""
    with uploads.pack_tasks([task]) as packed:
        uploads.send(client, packed.archives)
        return dict(client.submit(name, packed.tasks, user="", key=name))
