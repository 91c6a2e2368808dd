"""A training process and its write-back mount are killed repeatedly, and machines lose their disks. A checkpoint that
was reported durable is never lost: a new mount of the bucket loads it, or a newer one, bit for bit.

`STORM_KILLS` and `STORM_SEED` choose the number of kills and their random choices.
"""

from __future__ import annotations

import contextlib
import itertools
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.storage.buckets import Bucket, NewS3Bucket
from perdure.agent.storage import fuse
from perdure.agent.storage.checkpoint_journal import CheckpointJournal
from perdure.agent.storage.durability_watcher import DurabilityWatcher
from perdure.agent.storage.mounts import Mounts
from perdure.checkpoint import Checkpointer, NoUsableCheckpoint
from perdure.checkpoint.load import directory_cache
from support.helpers.timing import pause, scaled

STORM_KILLS = "storm_kills_survived"  # what pytest's last lines say of it: tests/conftest.py
KILLS = int(os.environ.get("STORM_KILLS", "40"))
KILLS_PER_BUCKET = 50  # a new bucket now and then: what dies before the first checkpoint is whole counts, too
SAVING_S = 0.5  # about ten saves and their uploads
LONG_LIFE_EVERY = 5  # on a busy machine half a second may be no time at all: some live until a step was called durable
SIZE = 300_000


def content(step: int) -> bytes:
    return random.Random(step).randbytes(SIZE)


TRAINING = """
    import random, sys
    from perdure.checkpoint import Checkpointer
    directory, size = sys.argv[1], int(sys.argv[2])
    def content(step):
        return random.Random(step).randbytes(size)
    with Checkpointer(directory, keep=2, asynchronous=True) as checkpointer:
        state = checkpointer.load()
        step = 0
        if state is not None:
            step = state["step"]
            assert state["w"] == content(step), f"step {step} was loaded with other content"
        print("loaded", step, flush=True)
        while True:
            step += 1
            checkpointer.save(step, {"step": step, "w": content(step)})
            checkpointer.wait()
"""


class Machine:
    """A node with a cached mount of the bucket; `lose` removes it with everything that it had not uploaded."""

    def __init__(self, home: Path, bucket: Bucket, rclone: Path) -> None:
        self.home, self._bucket, self._rclone = home, bucket, rclone
        self._number = 0
        self._begin()

    def _begin(self) -> None:
        self._number += 1
        self.directory = self.home / f"machine-{self._number}"
        (self.directory / "run").mkdir(parents=True)
        self.path = self.directory / "checkpoint"

    def mount(self) -> None:
        spec: dict[str, Any] = {
            "path": str(self.path),
            "mode": "MOUNT_CACHED",
            "bucket": self._bucket.name,
            "prefix": "",
        }
        spec |= {"read_only": False, "rclone": self._bucket.backend, "options": {"vfs_write_back": "100ms"}}
        self.mounts = Mounts([spec], state_dir=self.directory / "state", rclone=self._rclone, log=lambda _line: None)
        self.mounts.mount_all()
        (self.directory / "run" / "mounts.json").write_text(json.dumps(self.mounts.describe()))
        journal = CheckpointJournal(self.directory / "run" / "checkpoints.jsonl")
        self.watcher = DurabilityWatcher(journal, self.mounts.bucket_mounts)  # as of a restarted agent

    def kill_rclone(self) -> None:
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                argv = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                if argv[1:2] == [b"mount"] and any(bytes(self.directory) in part for part in argv):
                    os.kill(int(name), signal.SIGKILL)

    def lose(self) -> None:
        self.kill_rclone()
        # Mounts are stacked: the guard, the killed mount, and its replacement.
        while left := [path for path in fuse.mounts_by_path() if path.startswith(str(self.directory))]:
            for path in left:
                subprocess.run(["umount", "-l", path], check=True)
        shutil.rmtree(self.directory, ignore_errors=True)
        self._begin()

    def called_durable(self) -> int:
        """The newest step that this machine's agent reports durable; 0 for none."""
        self.watcher.poll()
        with contextlib.suppress(FileNotFoundError):
            lines = (self.directory / "run" / "checkpoints.jsonl").read_text().splitlines()
            notes = [json.loads(line) for line in lines if line.endswith("}")]
            return max((note["step"] for note in notes if note["state"] == "durable"), default=0)
        return 0

    def train(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(TRAINING), str(self.path), str(SIZE)],
            env={**os.environ, "PERDURE_RUN_DIR": str(self.directory / "run")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@contextlib.contextmanager
def mounted_anew(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where `machine`, which has never seen the bucket before, has mounted it; the machine is lost afterwards."""
    machine.mount()
    with monkeypatch.context() as patch:
        patch.setenv("PERDURE_RUN_DIR", str(machine.directory / "run"))
        patch.setattr(directory_cache, "_caches", {})
        yield str(machine.path)
    machine.lose()


def loaded_from(directory: str) -> int | None:
    """The step that a start there loads; 0 if there is none yet, None if all are refused."""
    with Checkpointer(directory) as checkpointer:
        try:
            state = checkpointer.load()
        except NoUsableCheckpoint:
            return None
    if state is None:
        return 0
    assert state["w"] == content(state["step"]), f"step {state['step']} was loaded with other content"
    return int(state["step"])


@pytest.mark.fuse
@pytest.mark.long
@pytest.mark.timeout(3600 * 4)
def test_checkpoints__survive_kills_of_process_mount_and_machine(
    tmp_path: Path,
    new_s3_bucket: NewS3Bucket,
    rclone: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    seed = os.environ.get("STORM_SEED", uuid.uuid4().hex)
    chance, counts, numbers = random.Random(seed), Counter[str](), iter(range(KILLS))
    while batch := list(itertools.islice(numbers, KILLS_PER_BUCKET)):
        bucket = new_s3_bucket()
        machine = Machine(tmp_path / "node", bucket, rclone)
        elsewhere = Machine(tmp_path / "elsewhere", bucket, rclone)
        durable = 0
        try:
            for number in batch:
                where = f"seed {seed}, kill {number}"
                what = chance.choice(["training", "rclone", "both", "machine"])
                counts[what] += 1
                once_durable = number % LONG_LIFE_EVERY == 0
                durable = life_and_death(machine, what, chance.uniform(0, SAVING_S), durable, where, once_durable)
                with mounted_anew(elsewhere, monkeypatch) as directory:
                    loaded = loaded_from(directory)
                assert durable == 0 or (loaded is not None and loaded >= durable), (
                    f"{where} ({what}): the bucket holds {loaded} after {durable} was called durable"
                )
                print(f"{where} ({what}): {durable} was called durable, the bucket holds {loaded}", flush=True)
        finally:
            machine.lose()
            elsewhere.lose()
        assert durable > 0 or len(batch) < KILLS_PER_BUCKET, f"seed {seed}: nothing became durable"
        bucket.remove()
        shutil.rmtree(tmp_path)
    record_property(STORM_KILLS, json.dumps(counts))


def life_and_death(machine: Machine, what: str, after_s: float, durable: int, where: str, once_durable: bool) -> int:
    """Train on `machine` for `after_s`, then kill; return the newest step ever reported durable.

    `once_durable`: the time starts when a newer step has been reported durable.
    """
    machine.mount()
    training = machine.train()
    fields = training.stdout.readline().split()  # type: ignore[union-attr]
    assert fields[:1] == ["loaded"], f"{where}: {training.communicate()[1][-2000:]}"
    assert int(fields[1]) >= durable, f"{where}: {fields[1]} was loaded after {durable} was durable"
    polls = itertools.repeat(None, 2400 if once_durable else 0)  # two minutes
    while next(polls, 0) is None and machine.called_durable() <= durable and training.poll() is None:
        threading.Event().wait(0.05)
    pause(after_s)
    assert training.poll() is None, f"{where}: training ended by itself: {training.communicate()[1][-2000:]}"
    if what != "training":
        machine.kill_rclone()
    if what != "rclone":
        training.kill()
    # Without its mount the process ends once rclone is gone, which may wait for a busy disk.
    _, error = training.communicate(timeout=scaled(180))
    assert what != "rclone" or "CheckpointError" in error or "CheckpointUnavailable" in error, f"{where}: {error}"
    durable = max(durable, machine.called_durable())
    if what == "machine":
        machine.lose()
    return durable
