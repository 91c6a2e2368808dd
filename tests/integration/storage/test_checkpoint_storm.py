"""A training process and its write-back mount are killed again and again, and machines lose their disks. What had once
been called durable is never lost, and what is loaded is what was saved, bit for bit.

`STORM_KILLS` and `STORM_SEED` choose how many and which.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import fuse
from holdfast.agent.mounts import Mounts
from holdfast.checkpoint import Checkpointer, NoUsableCheckpoint, memory

KILLS = int(os.environ.get("STORM_KILLS", "40"))

TRAINING = """
    import json, os, sys
    import numpy as np
    from holdfast.checkpoint import Checkpointer, CheckpointUnavailable
    directory = sys.argv[1]
    def content(step):
        return np.random.default_rng(step).integers(0, 255, 300_000, dtype=np.uint8)
    with Checkpointer(directory, keep=2, asynchronous=True) as checkpointer:
        state = checkpointer.load()
        step = 0
        if state is not None:
            step = state["step"]
            assert np.array_equal(state["w"], content(step)), f"step {step} was loaded with other content"
        print("loaded", step, flush=True)
        while True:
            step += 1
            checkpointer.save(step, {"step": step, "w": content(step)})
            checkpointer.wait()
"""


class Machine:
    """A node with a cached mount of the bucket; `lose` takes it away with all that it had not uploaded."""

    def __init__(self, home: Path, bucket: Any, rclone: Path) -> None:
        self.home, self._bucket, self._rclone = home, bucket, rclone
        self._number = 0
        self._begin()

    def _begin(self) -> None:
        self._number += 1
        self.directory = self.home / f"machine-{self._number}"
        (self.directory / "run").mkdir(parents=True)
        self.path = self.directory / "checkpoint"

    def mount(self) -> None:
        spec = {"path": str(self.path), "mode": "MOUNT_CACHED", "bucket": self._bucket.name, "prefix": ""}
        spec |= {"read_only": False, "rclone": self._bucket.backend, "options": {"vfs_write_back": "100ms"}}
        self.mounts = Mounts([spec], state_dir=self.directory / "state", rclone=self._rclone, log=lambda _line: None)
        self.mounts.mount_all()
        (self.directory / "run" / "mounts.json").write_text(json.dumps(self.mounts.describe()))

    def kill_rclone(self) -> None:
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                argv = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                if argv[1:2] == [b"mount"] and any(bytes(self.directory) in part for part in argv):
                    os.kill(int(name), signal.SIGKILL)

    def lose(self) -> None:
        self.kill_rclone()
        # Mounts lie on top of each other: the guard, what was killed, and what was mounted over it.
        while left := [path for path in fuse.mount_table() if path.startswith(str(self.directory))]:
            for path in left:
                subprocess.run(["umount", "-l", path], check=True)
        shutil.rmtree(self.directory, ignore_errors=True)
        self._begin()

    def called_durable(self) -> int:
        """The newest step that this machine's journal calls durable; 0 for none."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.directory / "run" / "checkpoints.jsonl").read_text().splitlines()
            notes = [json.loads(line) for line in lines if line.endswith("}")]
            return max((note["step"] for note in notes if note["state"] == "durable"), default=0)
        return 0

    def train(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(TRAINING), str(self.path)],
            env={**os.environ, "HOLDFAST_RUN_DIR": str(self.directory / "run")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def in_bucket(bucket: Any, directory: Path) -> int | None:
    """The step that a machine which never saw anything but the bucket would load."""
    shutil.rmtree(directory, ignore_errors=True)
    client = bucket.server.client
    for found in client.list_objects_v2(Bucket=bucket.name).get("Contents", []):
        path = directory / found["Key"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bucket.read(found["Key"]) or b"")
    directory.mkdir(exist_ok=True)
    memory._memories.clear()
    with Checkpointer(directory) as checkpointer:
        try:
            state = checkpointer.load()
        except NoUsableCheckpoint:
            return None
    return 0 if state is None else int(state["step"])


@pytest.mark.fuse
@pytest.mark.long
@pytest.mark.timeout(3600 * 4)
def test_storm(tmp_path: Path, s3_bucket: Any, rclone: Path) -> None:
    seed = os.environ.get("STORM_SEED", uuid.uuid4().hex)
    chance, pause = random.Random(seed), threading.Event()
    machine, durable, counts = Machine(tmp_path, s3_bucket, rclone), 0, Counter[str]()
    try:
        for number in range(KILLS):
            machine.mount()
            training = machine.train()
            said = training.stdout.readline().split()  # type: ignore[union-attr]
            assert said[:1] == ["loaded"], f"seed {seed}, kill {number}: {training.communicate()[1][-2000:]}"
            assert int(said[1]) >= durable, f"seed {seed}, kill {number}: {said[1]} after {durable} was durable"
            pause.wait(chance.uniform(0, 1.0))
            what = chance.choice(["training", "rclone", "both", "machine"])
            counts[what] += 1
            if what in ("rclone", "both", "machine"):
                machine.kill_rclone()
            if what in ("training", "both", "machine") or training.poll() is None:
                training.kill()
            training.communicate()
            durable = max(durable, machine.called_durable())
            if what == "machine":
                machine.lose()
            found = in_bucket(s3_bucket, tmp_path / "seen")
            assert durable == 0 or (found is not None and found >= durable), (
                f"seed {seed}, kill {number} ({what}): the bucket holds {found} after {durable} was called durable"
            )
    finally:
        machine.lose()
    print(f"\nsurvived {KILLS} kills {dict(counts)}; the newest durable step was {durable} (seed {seed})")
    assert durable > 0
