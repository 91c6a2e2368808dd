"""Fifteen seconds, as GKE leaves them, and a slow store: what was saved at the notice is durable, or is not used."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.storage.s3_server import KEY_ID, SECRET, S3Server
from support.fakes.kube import FakeKube
from support.helpers.controllers import running_controller
from support.helpers.ports import unused_port

pytestmark = pytest.mark.slow

BUCKET = "checkpoints-of-slow-pods"
PARTS = 8
CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_CA_BUNDLE": "/etc/ssl/none.crt"}
# Saves step 1, and at the notice step 2, of that many MiB in several files. Loads nothing whose digest is not its own.
TRAIN = """
import hashlib, os, time
from perdure.checkpoint import load_checkpoint, preempted, save_checkpoint, steps

def path(step, part):
    return f"ckpt/run/model_{step}.{part}"

@save_checkpoint(save_dir="ckpt/run", max_checkpoints=3)
def save(step, mib):
    digest = hashlib.sha256()
    for part in range(PARTS):
        with open(path(step, part), "wb") as file:
            # Two large parts leave transfers for the others, which arrive soon.
            data = os.urandom(int(mib * 2**20 / 2) if part < 2 else 2**16)
            file.write(data)
            digest.update(data)
    with open(f"ckpt/run/digest_{step}", "w") as file:
        file.write(digest.hexdigest())

@load_checkpoint(save_dir="ckpt/run")
def load(step):
    digest = hashlib.sha256()
    for part in range(PARTS):
        digest.update(open(path(step, part), "rb").read())
    assert digest.hexdigest() == open(f"ckpt/run/digest_{step}").read(), f"step {step} is torn"
    return step

os.makedirs("ckpt/run", exist_ok=True)
first = load() or 0
print("continues after", first, flush=True)
if first:
    raise SystemExit(0)
save(1, 1)
while not steps("ckpt/run")[0].durable:
    time.sleep(0.1)
print("step 1 is durable", flush=True)
while not preempted():
    time.sleep(0.05)
save(2, SIZE)
print("saved step 2", flush=True)
raise SystemExit(1)
"""


class SlowLine:
    """A TCP proxy to a port of this computer, through which all connections together send so many bytes a second."""

    def __init__(self, port: int, bytes_per_s: float) -> None:
        self._target, self._rate = port, bytes_per_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._free_at = 0.0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                for source, target, is_slow in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self._forward, args=(source, target, is_slow), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, is_slow: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 15):
                if is_slow:
                    self._wait_for_turn(len(data))
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _wait_for_turn(self, size: int) -> None:
        with self._lock:
            begins_at = max(self._free_at, time.monotonic())
            self._free_at = begins_at + size / self._rate
        time.sleep(max(0.0, self._free_at - time.monotonic()))  # noqa: TID251 - the delay is the fault


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    server = S3Server(unused_port(), tmp_path / "moto.log")
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize(("mib", "continues_after"), [(1, 2), (60, 1)], ids=["fits", "does-not-fit"])
def test_fifteen_seconds__make_a_checkpoint_durable_or_leave_the_last_one(
    s3: S3Server, tmp_path: Path, mib: int, continues_after: int
) -> None:
    line = SlowLine(s3.port, 2 * 2**20)
    home, port = tmp_path / "home", unused_port()
    home.mkdir()
    (tmp_path / "train.py").write_text(TRAIN.replace("SIZE", str(mib)).replace("PARTS", str(PARTS)))
    with FakeKube(tmp_path / "kube") as kube:
        for zone in ("zone-1", "zone-2"):
            kube.add_node(f"spot-{zone}", zone=zone, labels={"cloud.google.com/gke-spot": "true"})
        kube.settings["controller_url"] = f"http://127.0.0.1:{port}"
        storage = f"s3: {{endpoint: 'http://127.0.0.1:{line.port}', region: us-east-1}}\n"
        (home / "config.yaml").write_text(f"local: false\nlisten: {{port: {port}}}\n{storage}{kube.config}")
        with running_controller(home, environ={**kube.environ, **CREDENTIALS}) as controller:
            task = {
                "name": "train",
                "resources": {"infra": "k8s", "cpus": "1+", "use_spot": True},
                "file_mounts": {
                    "ckpt": {"name": BUCKET, "store": "s3", "mode": "MOUNT_CACHED"},
                    "train.py": str(tmp_path / "train.py"),
                },
                "run": "python3 train.py",
            }
            (tmp_path / "task.yaml").write_text(yaml.safe_dump(task))
            controller.perdure("jobs", "launch", tmp_path / "task.yaml", "-y", "-d")
            controller.until(lambda: "step 1 is durable" in controller.log(1), "the first checkpoint")
            (pod,) = kube.pods()
            assert pod["spec"]["terminationGracePeriodSeconds"] == 15
            kube.evict(pod["metadata"]["name"])
            controller.until(lambda: controller.job(1)["status"] == "SUCCEEDED", "the end of the job")
            log = controller.log(1)
            assert "saved step 2" in log, "the workload saved it in time"
            assert [int(step) for step in re.findall(r"continues after (\d+)", log)] == [0, continues_after]
            stored = [key for key in s3.objects(BUCKET) if "model_2." in key]
            if continues_after == 2:
                assert len(stored) == PARTS
            else:
                assert len(stored) < PARTS, "the step is torn"
                told = [event["message"] for event in controller.job(1)["timeline"]]
                assert any(f"files did not reach bucket {BUCKET}: run/model_2." in text for text in told), told
            assert controller.job(1)["recovery_count"] == 1
    line.close()
