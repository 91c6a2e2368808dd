"""What every job of the crash suite runs. It keeps a record of its own, which no controller can touch: it judges them.

`work.py train`: counts, saves every five steps, goes on from the newest checkpoint, and ends once $JUDGE/finish exists.
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
    """One line, written whole: appends of this size are not torn."""
    line = {"event": event, "job": int(JOB), "rank": int(RANK), "step": step, "pid": os.getpid(), "at": time.time()}
    line |= {"machine": socket.gethostname(), "task_id": os.environ["SKYPILOT_TASK_ID"]}
    with (JUDGE / "record").open("a") as file:
        file.write(json.dumps(line) + "\n")


def say(text: str) -> None:
    """Print, and keep what was printed."""
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
        say(f"step {step}")
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
        Path("/scratch/file").write_text("much\n" * 1000)
    say(f"this one is to {kind}")
    record("end", 0)
    return 3 if kind == "fails" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
