"""`make demo`: a training job is preempted twice, once with a notice and once without, and loses no result.

It uses only the `perdure` command and `perdure.sdk`, as any user can. Everything that it creates is in a temporary
folder, which it removes at the end. It checks its claims: if one of them is false, it prints which one and exits with
code 1.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from examples.demo_output import DemoOutput

import perdure.sdk as perdure
from perdure.sdk.connection import api_types
from perdure.sdk.connection.endpoint import ClientError

ROOT = Path(__file__).resolve().parents[1]
TRAINING = Path("examples/numpy_train")
STEPS = 1000
NOTICE_S = 5
# Steps after which the machine is taken: between two checkpoints, which are made every 100 steps.
NOTICE_AFTER_STEP = 240
KILL_AFTER_STEP = 680
TIMEOUT_S = 120.0


class DemoFailed(Exception):
    """Something did not happen as expected."""


def main() -> int:
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with temporary_home() as home, uninterrupted_loss() as loss_without_interruption:
            output = DemoOutput(began)
            job_id = launch(output)
            with followed_log(job_id, output):
                preempt_twice(job_id, output)
            job = perdure.jobs.get(job_id)
            output.print_machines(job)
            findings = check(job, output, loss_without_interruption())
            output.print_findings(findings)
            close(home, job_id)
    except (DemoFailed, ClientError) as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"\nStopped the controller and removed everything. {time.monotonic() - began:.0f} s in all.")
    return 0


@contextlib.contextmanager
def temporary_home() -> Iterator[Path]:
    """A separate controller with an empty home. At the end, everything that runs in it is stopped."""
    home = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
    for name in ("PERDURE_ENDPOINT", "PERDURE_TOKEN", "PERDURE_TOKEN_FILE"):
        os.environ.pop(name, None)
    os.environ["PERDURE_HOME"] = str(home)
    os.chdir(ROOT)
    command("controller", "start")
    try:
        yield home
    except BaseException:
        with contextlib.suppress(Exception):
            print(command("controller", "logs", "--tail", "30"), file=sys.stderr)
        with contextlib.suppress(Exception):
            command("jobs", "cancel", "--all", "--yes", "--no-graceful")
            wait_until(
                lambda: all(attempts_gone(job["job_id"]) for job in perdure.jobs.queue()["jobs"]), "the clean-up"
            )
        raise
    finally:
        with contextlib.suppress(Exception):
            command("controller", "stop")
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def uninterrupted_loss() -> Iterator[Callable[[], str]]:
    """Run the same training on this machine without interruptions; yields a function that returns its final loss."""
    folder = tempfile.mkdtemp(prefix="perdure-demo-")
    process = subprocess.Popen(
        [sys.executable, "train.py", "--checkpoints", folder, "--steps", str(STEPS)],
        cwd=ROOT / TRAINING,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "SKYPILOT_TASK_ID": "uninterrupted"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield lambda: final_loss(process.communicate(timeout=TIMEOUT_S)[0])
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def launch(output: DemoOutput) -> int:
    output.print_command("perdure jobs launch examples/numpy_train/train.yaml --detach-run --yes")
    command("jobs", "launch", str(TRAINING / "train.yaml"), "--env", f"STEPS={STEPS}", "--detach-run", "--yes")
    return perdure.jobs.newest()


@contextlib.contextmanager
def followed_log(job_id: int, output: DemoOutput) -> Iterator[None]:
    """Print the job's log as it arrives, from all of its machines."""
    process = subprocess.Popen(
        perdure_command("jobs", "logs", str(job_id)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    reader = threading.Thread(target=lambda: [output.add_log_line(line) for line in process.stdout or ()], daemon=True)
    reader.start()
    try:
        yield
        reader.join(timeout=10.0)
    finally:
        process.terminate()
        process.wait()


def preempt_twice(job_id: int, output: DemoOutput) -> None:
    def step_reached(step: int) -> bool:
        output.print_new_events(perdure.jobs.get(job_id))
        return output.last_step >= step

    def ended() -> bool:
        job = perdure.jobs.get(job_id)
        output.print_new_events(job)
        return job["ended_at"] is not None

    wait_until(lambda: step_reached(NOTICE_AFTER_STEP) or ended(), f"step {NOTICE_AFTER_STEP}")
    output.print_command(f"perdure jobs preempt {job_id} --notice {NOTICE_S}")
    command("jobs", "preempt", str(job_id), "--notice", str(NOTICE_S))

    wait_until(lambda: step_reached(KILL_AFTER_STEP) or ended(), f"step {KILL_AFTER_STEP}")
    output.print_command(f"perdure jobs preempt {job_id} --kill")
    command("jobs", "preempt", str(job_id), "--kill")

    wait_until(ended, "the end of the job")
    wait_until(lambda: attempts_gone(job_id), "the end of the machines")
    output.print_new_events(perdure.jobs.get(job_id))


def attempts_gone(job_id: int) -> bool:
    return all(attempt["state"] == "GONE" for attempt in perdure.jobs.get(job_id)["attempts"])


def wait_until(condition: Callable[[], bool], what: str) -> None:
    ends_at = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > ends_at:
            raise DemoFailed(f"waited {TIMEOUT_S:.0f} s for {what}, which did not happen")
        time.sleep(0.2)


def check(job: api_types.JobDetail, output: DemoOutput, loss_without_interruption: str) -> list[str]:
    """The claims that are true. Raises `DemoFailed` at the first one that is not."""
    findings: list[str] = []

    def claim(is_so: bool, text: str) -> None:
        if not is_so:
            raise DemoFailed(f"this claim is false: {text}")
        findings.append(text)

    claim(job["status"] == "SUCCEEDED", f"the job {job['status']}")
    claim(output.task_ids == {job["task_id"]}, f"one task ID in every line of the log: {job['task_id']}")
    claim(job["recovery_count"] == 2, f"{job['recovery_count']} recoveries")
    zones = [attempt["zone"] for attempt in job["attempts"]]
    moved = all(before != after for before, after in itertools.pairwise(zones))
    claim(len(zones) == 3 and moved, f"three machines, each in another zone than the one before: {' → '.join(zones)}")
    claim(len(output.repeated) == 2, "each new machine resumed from a checkpoint")
    after_notice, after_kill = output.repeated
    claim(after_notice == 0, "no step was repeated after the notice: it was saved in time")
    claim(0 <= after_kill <= 200, f"{after_kill} steps were repeated after the kill (a checkpoint is made every 100)")
    claim(
        final_loss("\n".join(output.lines)) == loss_without_interruption,
        f"the final loss is that of a run without interruption, to the last digit: {loss_without_interruption}",
    )
    cost, full = job["cost_usd"], job["on_demand_cost_usd"]
    claim(0 < cost < full, f"cost ${cost:.6f}; the same time on demand ${full:.6f} ({1 - cost / full:.0%} saved)")
    return findings


def final_loss(log: str) -> str:
    match = re.search(r"final loss (\S+)", log)
    if not match:
        raise DemoFailed("the training printed no final loss")
    return match[1]


def close(home: Path, job_id: int) -> None:
    """Stop the controller, and check that it left nothing behind."""
    command("controller", "stop")
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines() if str(home) in line]
    if mounts:
        raise DemoFailed(f"mounts were left behind: {mounts}")
    wait_until(lambda: not processes_of(home), f"the end of every process of job {job_id}")


def processes_of(home: Path) -> list[int]:
    pids = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and str(home).encode() in (entry / "cmdline").read_bytes():
                pids.append(int(entry.name))
    return pids


def perdure_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "perdure.cli", *words]


def command(*words: str) -> str:
    """Run one `perdure` command; returns its output. Raises `DemoFailed` with the output if it fails."""
    done = subprocess.run(perdure_command(*words), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DemoFailed(f"`perdure {' '.join(words)}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
