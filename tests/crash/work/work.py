"""The workload of the crash suite. It keeps its own record, which no controller can change: the evidence of the checks.

`work.py train`: counts, saves every five steps, resumes from the newest checkpoint, and ends once $JUDGE/finish exists.
`work.py fails`: ends with exit code 3. `work.py scratch`: leaves a file in its bucket.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

from perdure.checkpoint import load_checkpoint, preempted, save_checkpoint

JUDGE = Path(os.environ["JUDGE"])
JOB = os.environ["SKYPILOT_MANAGED_JOB_ID"]
RANK = os.environ["SKYPILOT_NODE_RANK"]
FOLDER = "/checkpoint/" + JOB


def record(event: str, step: int) -> None:
    """Append one line. Appends of this size are atomic."""
    line = {"event": event, "job": int(JOB), "rank": int(RANK), "step": step, "pid": os.getpid(), "at": time.time()}
    line |= {"machine": socket.gethostname(), "task_id": os.environ["SKYPILOT_TASK_ID"]}
    with (JUDGE / "record").open("a") as file:
        file.write(json.dumps(line) + "\n")


def print_and_record(text: str) -> None:
    """Print a line, and keep a copy of it."""
    with (JUDGE / f"{socket.gethostname()}.printed").open("a") as file:
        file.write(text + "\n")
    print(text, flush=True)


@save_checkpoint(save_dir=FOLDER, max_checkpoints=2)
def save(step: int) -> None:
    Path(FOLDER, f"step_{step}").write_text(str(step))


@load_checkpoint(save_dir=FOLDER)
def load(step: int) -> int:
    return int(Path(FOLDER, f"step_{step}").read_text())


def train() -> int:
    Path(FOLDER).mkdir(parents=True, exist_ok=True)
    step = load() or 0
    record("begin", step)
    while True:
        step += 1
        print_and_record(f"step {step}")
        stop, over = preempted(), (JUDGE / "finish").exists()
        if stop or over or step % 5 == 0:
            save(step)
        if stop or over:
            record("end", step)
            return 0
        time.sleep(0.1)


def main(kind: str) -> int:
    signal.signal(signal.SIGTERM, lambda *_: None)
    lock = (JUDGE / f"{JOB}-{RANK}.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        record("twice", 0)
    if kind == "train":
        return train()
    record("begin", 0)
    if kind == "scratch":
        Path("/scratch/file").write_text("data\n" * 1000)
    print_and_record(f"this job is: {kind}")
    record("end", 0)
    return 3 if kind == "fails" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
