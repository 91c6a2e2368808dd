"""The command line in everyday use: mistakes, two terminals, lost files, full disks, killed controllers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perdure.sdk.connection.discovery import is_controller
from support.helpers.controllers import Controller
from support.helpers.timing import scaled

ZONES = ("local-east-a", "local-east-b", "local-west-a")


@pytest.fixture
def new_home(controller: Controller, tmp_path: Path) -> Iterator[Controller]:
    """A new home, without a controller."""
    one = replace(controller, home=tmp_path / "home")
    one.home.mkdir(mode=0o700)
    try:
        yield one
    finally:
        one.perdure("controller", "stop", check=False)


def recorded_pid(controller: Controller) -> int:
    return int(json.loads((controller.home / "controller.json").read_text())["pid"])


def kill(controller: Controller) -> None:
    pid = recorded_pid(controller)
    os.kill(pid, signal.SIGKILL)
    controller.until(lambda: not is_controller(pid), "the controller's death")


def launch(controller: Controller, *words: str) -> int:
    done = controller.perdure("jobs", "launch", *words, "--detach-run", "--yes")
    return int(re.findall(r"Job (\d+) ", done.stdout)[0])


def ended(controller: Controller, job_id: int) -> dict[str, Any]:
    controller.until(lambda: controller.job(job_id)["ended_at"], f"the end of job {job_id}")
    return dict(controller.job(job_id))


def following(controller: Controller, *words: str) -> subprocess.Popen[bytes]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
    return subprocess.Popen(
        [sys.executable, "-m", "perdure.cli", "jobs", *words],
        env={**environ, "PERDURE_HOME": str(controller.home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


# --- controllers that die, and files that are lost ------------------------------------------------


def test_log_follower__restarts_a_killed_controller_and_misses_nothing(controller: Controller) -> None:
    follower = following(controller, "launch", "for i in $(seq 1 40); do echo tick $i; sleep 0.1; done", "--yes")
    assert follower.stdout is not None
    seen = next(line for line in follower.stdout if line == b"tick 5\n")
    kill(controller)
    rest, output = follower.communicate(timeout=scaled(60))
    assert follower.returncode == 0, output
    assert seen + rest.partition(b"--- attempt 1 ended")[0] == b"".join(b"tick %d\n" % i for i in range(5, 41))


def test_killed_controller__submission_and_cancellation_survive(controller: Controller) -> None:
    before = controller.client.jobs(limit=1)["total"]
    kill(controller)
    submitted = [following(controller, "launch", "sleep 600", "-d", "-y") for _ in range(2)]
    assert submitted[0].stdout is not None
    assert submitted[0].stdout.readline().startswith(b"Candidates, in order"), "one of them has started a controller"
    kill(controller)
    output = [one.communicate(timeout=scaled(60))[1] for one in submitted]
    assert [one.returncode for one in submitted] == [0, 0], output
    assert controller.client.jobs(limit=1)["total"] == before + 2, "each once"
    newest = controller.client.jobs(limit=2)["jobs"]
    kill(controller)
    controller.perdure("jobs", "cancel", "--all-users", "--yes")
    assert {ended(controller, job["job_id"])["status"] for job in newest} == {"CANCELLED"}


def test_num_jobs__gives_each_job_its_rank(new_home: Controller) -> None:
    output = new_home.perdure(
        "jobs", "launch", "-n", "sweep", "--num-jobs", "3", "-y", 'echo "$SKYPILOT_JOB_RANK of $SKYPILOT_NUM_JOBS"'
    ).stdout
    assert "Jobs 1 to 3 (sweep) submitted." in output
    for rank, job_id in enumerate((1, 2, 3)):
        assert ended(new_home, job_id)["status"] == "SUCCEEDED"
        assert new_home.perdure("jobs", "logs", str(job_id)).stdout.count(f"{rank} of 3") == 1
    listed = json.loads(new_home.perdure("jobs", "queue", "-a", "-n", "sw??p", "-o", "json").stdout)
    assert [job["job_id"] for job in listed] == [3, 2, 1]
    refused = new_home.perdure("jobs", "queue", "-n", "sw[ee", check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "no ] follows the [" in refused.stderr


def test_killed_controller__completes_a_cancel_of_many_jobs(new_home: Controller) -> None:
    (new_home.home / "local").mkdir()
    (new_home.home / "local" / "zones.json").write_text(json.dumps({zone: {"capacity": 0} for zone in ZONES}))
    new_home.perdure("jobs", "launch", "-n", "many", "--num-jobs", "60", "-y", "true")
    assert "Jobs with IDs 1-60 are scheduled" in new_home.perdure("jobs", "cancel", "-n", "many", "-y").stdout
    kill(new_home)
    new_home.perdure("controller", "start")
    new_home.until(lambda: new_home.client.jobs(limit=1)["counts"] == {"CANCELLED": 60}, "the end of all")


@pytest.mark.slow
def test_stopped_controller__is_not_restarted_by_a_log_follower(new_home: Controller) -> None:
    new_home.perdure("controller", "start")
    follower = following(new_home, "launch", "echo begun; sleep 600", "--yes")
    assert follower.stdout is not None
    assert next(line for line in follower.stdout if line == b"begun\n")
    new_home.perdure("controller", "stop")
    assert follower.stderr is not None
    assert next(line for line in follower.stderr if b"does not answer; waiting" in line)
    assert new_home.perdure("controller", "status", check=False).returncode == 1
    new_home.perdure("controller", "start")
    new_home.perdure("jobs", "cancel", "--all-users", "--yes", "--no-graceful")
    follower.communicate(timeout=scaled(60))
    assert follower.returncode == 103


@pytest.mark.slow
def test_lost_token__names_the_fix(new_home: Controller) -> None:
    new_home.perdure("controller", "start")
    (new_home.home / "token").unlink()
    refused = new_home.perdure("jobs", "queue", check=False)
    assert "controller stop && perdure controller start" in refused.stderr
    new_home.perdure("controller", "stop")
    new_home.perdure("controller", "start")
    new_home.perdure("jobs", "queue")


def test_foreign_controller__on_our_old_port_is_not_used(controller: Controller, new_home: Controller) -> None:
    """After a reboot, another user's controller may listen on the port in our `controller.json`."""
    record = json.loads((controller.home / "controller.json").read_text())
    ended_process = subprocess.Popen(["true"])
    ended_process.wait()
    (new_home.home / "controller.json").write_text(json.dumps({**record, "pid": ended_process.pid}))
    (new_home.home / "token").touch(0o600)
    (new_home.home / "token").write_text("ours")
    new_home.perdure("jobs", "queue")
    assert recorded_pid(new_home) != record["pid"]


@pytest.mark.parametrize(
    ("config", "line", "field"),
    [("log_level: info\nlisten:\n  port: 70000\n", 3, "listen.port"), ("timeouts:\n\tdrain_timeout_s: 3\n", 2, "")],
)
def test_invalid_config__is_reported_with_line_and_field(
    new_home: Controller, config: str, line: int, field: str
) -> None:
    (new_home.home / "config.yaml").write_text(config)
    refused = new_home.perdure("jobs", "queue", check=False)
    assert refused.returncode == 1
    assert f"config.yaml:{line}: {field}" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_invalid_database__is_reported_and_kept(new_home: Controller) -> None:
    rubbish = os.urandom(9000)
    (new_home.home / "perdure.db").write_bytes(rubbish)
    refused = new_home.perdure("jobs", "queue", check=False)
    assert "perdure.db cannot be opened: file is not a database" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert (new_home.home / "perdure.db").read_bytes() == rubbish


@pytest.mark.slow
def test_damaged_page_of_the_database__is_reported(new_home: Controller) -> None:
    new_home.perdure("jobs", "queue")
    new_home.perdure("controller", "stop")
    database = new_home.home / "perdure.db"
    with database.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(bytes(6 * 4096))
    damaged = database.read_bytes()
    refused = new_home.perdure("jobs", "queue", check=False)
    assert "perdure.db cannot be opened: database disk image is malformed" in refused.stderr
    assert "restore it from a backup" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert database.read_bytes() == damaged


@pytest.mark.slow
def test_migrate__refused_arguments_stop_no_controller(new_home: Controller) -> None:
    new_home.perdure("jobs", "queue")
    record = (new_home.home / "controller.json").read_text()
    for url in ("postgresql://me:sesame@127.0.0.1:1/none", "postgresql://127.0.0.1:1/none", "mysql://h/d", ""):
        refused = new_home.perdure("controller", "migrate", "--to", url, check=False)
        assert (refused.returncode, refused.stdout) == (2, ""), url
        assert "sesame" not in refused.stderr
    assert new_home.perdure("controller", "status").returncode == 0
    assert (new_home.home / "controller.json").read_text() == record, "the same process"


def test_home__that_is_a_file_is_reported(new_home: Controller, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = replace(new_home, home=tmp_path / "file").perdure("jobs", "queue", check=False)
    assert f"{tmp_path / 'file'}: is not a folder" in refused.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="only root can mount a small disk")
def test_full_disk__stops_nothing_permanently_and_loses_no_line(new_home: Controller, tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m,mode=700", "tmpfs", new_home.home], check=False)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    (tmp_path / "machines").mkdir()
    (new_home.home / "local").symlink_to(tmp_path / "machines")  # machines have disks of their own
    try:
        new_home.perdure("controller", "start")
        job = launch(new_home, "for i in $(seq 100); do echo tick $i; sleep 0.1; done")
        new_home.until(lambda: new_home.job(job)["status"] == "RUNNING", "the job to run")
        pid = recorded_pid(new_home)
        fill(new_home.home / "filling")
        refused = new_home.perdure("jobs", "launch", "echo second", "-y", "-d", check=False)
        assert refused.returncode == 1
        assert "disk is full" in refused.stderr
        assert "PERDURE_HOME" in refused.stderr
        (new_home.home / "filling").unlink()
        assert new_home.perdure("jobs", "launch", "echo third", "-y").returncode == 0
        assert ended(new_home, job)["status"] == "SUCCEEDED"
        assert recorded_pid(new_home) == pid
        ticks = [line for line in new_home.log(job).splitlines() if line.startswith("tick")]
        assert ticks == [f"tick {i}" for i in range(1, 101)]
    finally:
        new_home.perdure("jobs", "cancel", "-a", "-y", "--no-graceful", check=False)
        new_home.perdure("controller", "stop", check=False)
        subprocess.run(["umount", "--lazy", new_home.home], check=True)


def fill(path: Path) -> None:
    """Grow `path` until the disk is full."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65536))


def test_controller_log__shows_errors_without_values_of_variables(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, structlog; from perdure.controller.runtime.daemon_log import configure_logging\n"
        "configure_logging(pathlib.Path(sys.argv[1]), 'info')\n"
        "def submit(secret):\n    raise OSError('no room')\n"
        "try:\n    submit('hunter2' + '-xyzzy')\n"
        "except OSError:\n    structlog.get_logger().exception('submission.failed')\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    written = (tmp_path / "controller.log").read_text()
    assert "no room" in written
    assert "hunter2-xyzzy" not in written


# --- what a job sees, prints and costs ------------------------------------------------------------


@pytest.mark.slow
def test_waiting_job__reports_missing_capacity_and_uses_it(new_home: Controller) -> None:
    (new_home.home / "local").mkdir()
    zones = new_home.home / "local" / "zones.json"
    zones.write_text(json.dumps({zone: {"capacity": 0} for zone in ZONES}))
    job = launch(new_home, "echo there was room", "--use-spot")
    new_home.until(lambda: new_home.job(job)["reason"] == "BACKING_OFF", "all zones to have refused")
    waiting = new_home.job(job)
    assert waiting["status"] == "PENDING"
    assert waiting["zone"] is None, "it is nowhere yet"
    queue = new_home.perdure("jobs", "queue").stdout
    expected = "every matching offer was unavailable recently; the next attempt is at"
    assert re.search(rf"Job {job} is waiting: {expected} \d{{4}}-", queue)
    shown = new_home.perdure("jobs", "show", job).stdout
    assert "(local/local-west/local-west-a local-1 spot; not before " in shown
    planned = new_home.perdure("jobs", "launch", "echo x", "--use-spot", "--dryrun").stdout
    assert "the job waits until one becomes available" in planned
    zones.write_text("{}")
    assert ended(new_home, job)["status"] == "SUCCEEDED"
    first, *_, last = new_home.job(job)["timeline"]
    assert seconds(last) - seconds(first) < 30


def seconds(entry: dict[str, Any]) -> float:
    from datetime import datetime

    return datetime.fromisoformat(entry["at"]).timestamp()


def test_pipeline__reports_which_task_failed(controller: Controller, tmp_path: Path) -> None:
    pipeline = tmp_path / "three.yaml"
    pipeline.write_text(
        "name: three\n---\nname: one\nrun: printf '%s\\n' \"$SKYPILOT_TASK_IDS\"\n---\n"
        "name: two\nrun: exit 3\n---\nname: last\nrun: echo never\n"
    )
    done = controller.perdure("jobs", "launch", pipeline, "-y", check=False)
    assert done.returncode == 100
    job = int(re.findall(r"Job (\d+) ", done.stdout)[0])
    tasks = controller.job(job)["tasks"]
    assert [task["status"] for task in tasks] == ["SUCCEEDED", "FAILED", "CANCELLED"]
    ids = [task["task_id"] for task in tasks]
    assert [i.rsplit("_", 2)[1:] for i in ids] == [["one", f"{job}-0"], ["two", f"{job}-1"], ["last", f"{job}-2"]]
    assert "\n".join(ids) in done.stdout
    shown = controller.perdure("jobs", "show", job).stdout
    assert re.search(r"\s1\s+1\s+attempt\.requested .* PREVIOUS_TASK_DONE", shown), "attempt 1 of task 1"
    assert controller.perdure("jobs", "logs", job, "last", "--no-follow", check=False).returncode == 103


def test_environment__is_complete_in_setup_and_run(controller: Controller, tmp_path: Path) -> None:
    task = tmp_path / "vars.yaml"
    show = "python3 -c 'import json, os; print(\"{}\", json.dumps(dict(os.environ)))'"
    task.write_text(
        f"name: vars\nnum_nodes: 2\nresources: {{accelerators: V100:2, use_spot: true}}\n"
        f"setup: {json.dumps(show.format('in-setup'))}\nrun: {json.dumps(show.format('in-run'))}\n"
    )
    done = controller.perdure("jobs", "launch", task, "-y")
    job = int(re.findall(r"Job (\d+) ", done.stdout)[0])
    reported = controller.job(job)
    assert reported["cluster_resources"] == "2x(local-v100x2, V100:2, spot)"
    for rank in ("0", "1"):
        for stage in ("setup", "run"):
            line = re.search(rf"\(rank {rank}\) in-{stage} (.*)", done.stdout)
            assert line, done.stdout
            has = json.loads(line[1])
            ips = [node["ip"] for node in reported["attempts"][0]["nodes"]]
            prefix = "SKYPILOT_SETUP_" if stage == "setup" else "SKYPILOT_"
            assert has["SKYPILOT_TASK_ID"] == has["SKYPILOT_TASK_IDS"] == reported["task_id"]
            assert has["SKYPILOT_MANAGED_JOB_ID"] == str(job)
            assert (has["SKYPILOT_JOB_RANK"], has["SKYPILOT_NUM_JOBS"], has["SKYPILOT_NUM_NODES"]) == ("0", "1", "2")
            assert has[f"{prefix}NODE_RANK"] == rank
            assert has[f"{prefix}NODE_IPS"].splitlines() == ips
            assert has[f"{prefix}NUM_GPUS_PER_NODE"] == "2"
            assert has["SKYPILOT_USER"] == reported["user"]
            place = {"cloud": "local", "region": reported["region"], "zone": reported["zone"]}
            assert json.loads(has["SKYPILOT_CLUSTER_INFO"]) == {"cluster_name": f"vars-{job}-0", **place}
            assert has["PYTHONUNBUFFERED"] == "1"


def test_job_output__arrives_byte_for_byte(controller: Controller) -> None:
    script = (
        r"printf '\033[31mred\033[0m\n\377\376no utf-8\n'; head -c 1100000 /dev/zero | tr '\0' x; echo; "
        "printf 'no end'"
    )
    follower = following(controller, "launch", script, "-y")
    out, _ = follower.communicate(timeout=scaled(60))
    assert follower.returncode == 0
    sent = b"\x1b[31mred\x1b[0m\n\xff\xfeno utf-8\n" + b"x" * 1_100_000 + b"\nno end"
    assert sent in out
    last = following(controller, "logs", "--tail", "2", "--no-follow")
    tail, _ = last.communicate(timeout=scaled(60))
    assert tail.startswith(b"no end\n--- attempt 1 ended"), tail


def test_unresponsive_workload__is_killed_after_its_grace(controller: Controller) -> None:
    job = launch(controller, "trap '' TERM; echo deaf; while :; do sleep 0.1; done")
    controller.until(lambda: "deaf\n" in controller.log(job), "the workload")
    controller.perdure("jobs", "cancel", job, "--graceful-timeout", 1, "-y")
    assert ended(controller, job)["status"] == "CANCELLED"
    again = controller.perdure("jobs", "cancel", job, "-y")
    assert f"Job {job} has already finished." in again.stdout
    assert controller.perdure("jobs", "preempt", job, check=False).returncode == 1


@pytest.mark.parametrize("width", [80, 160])
def test_job_pages__fit_the_terminal(controller: Controller, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    job = launch(controller, "sleep 600", "--use-spot", "-n", "a-job-with-a-rather-long-name-for-a-table")
    controller.until(lambda: controller.job(job)["status"] == "RUNNING", "the job to run")
    controller.perdure("jobs", "preempt", job, "--kill")
    controller.until(lambda: controller.job(job)["recovery_count"] == 1, "its recovery")
    controller.until(lambda: controller.job(job)["status"] == "RUNNING", "the job to run again")
    queue = controller.perdure("jobs", "queue").stdout
    assert re.search(rf"{job} .*RUNNING .*st-[ab] spot", queue)
    shown = controller.perdure("jobs", "show", job).stdout
    tables = shown.partition("Attempts")[2]
    assert "the cloud took the machine" in " ".join(tables.split())
    assert max(map(len, (queue + tables).splitlines())) <= width
    controller.perdure("jobs", "cancel", job, "-y", "--no-graceful")
