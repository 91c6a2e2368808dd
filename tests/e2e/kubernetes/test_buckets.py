"""A job in unprivileged pods keeps its checkpoints in a bucket without FUSE, and continues from them on another pod."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.storage.s3_server import KEY_ID, SECRET, S3Server
from support.fakes.kube import FakeKube
from support.helpers.controllers import Controller, running_controller
from support.helpers.ports import unused_port

pytestmark = pytest.mark.slow
CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_CA_BUNDLE": "/etc/ssl/none.crt"}
# Saves a checkpoint of two files ten times a second, and says which step it continues after.
TRAIN = """
import os, time
from perdure.checkpoint import load_checkpoint, preempted, save_checkpoint

@save_checkpoint(save_dir="ckpt/run", max_checkpoints=3)
def save(step):
    for part in range(2):
        with open(f"ckpt/run/model_{step}.{part}", "wb") as file:
            file.write(os.urandom(300_000))

@load_checkpoint(save_dir="ckpt/run")
def load(step):
    return step

assert not os.path.exists("/dev/fuse"), "a container has none"
os.makedirs("ckpt/run", exist_ok=True)
first = load() or 0
print("continues after", first, "in", os.environ["HOSTNAME"], flush=True)
for step in range(first + 1, 10_000):
    save(step)
    print("saved", step, flush=True)
    if preempted():
        break
    if first and step >= first + 3:
        raise SystemExit(0)
    time.sleep(0.1)
raise SystemExit(1)
"""


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    server = S3Server(unused_port(), tmp_path / "moto.log")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[FakeKube]:
    with FakeKube(tmp_path / "kube") as kube:
        for zone in ("zone-1", "zone-2"):
            kube.add_node(f"spot-{zone}", zone=zone, labels={"karpenter.sh/capacity-type": "spot"})
        yield kube


@pytest.fixture
def controller(kube: FakeKube, s3: S3Server, tmp_path: Path) -> Iterator[Controller]:
    home = tmp_path / "home"
    home.mkdir()
    port = unused_port()
    kube.settings["controller_url"] = f"http://127.0.0.1:{port}"
    storage = f"s3: {{endpoint: '{s3.endpoint}', region: us-east-1}}\n"
    (home / "config.yaml").write_text(f"local: false\nlisten: {{port: {port}}}\n{storage}{kube.config}")
    with running_controller(home, environ={**kube.environ, **CREDENTIALS}) as one:
        yield one
        for pod in kube.pods():
            print(pod["metadata"]["name"], pod["status"], kube.output(pod["metadata"]["name"])[-3000:])
        print((home / "controller.log").read_text()[-4000:])


def test_checkpoints__reach_the_bucket_without_fuse_and_the_next_pod_continues(
    kube: FakeKube, controller: Controller, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    task = {
        "name": "train",
        "resources": {"infra": "k8s", "cpus": "1+", "use_spot": True},
        "file_mounts": {
            "ckpt": {"name": "checkpoints-of-pods", "store": "s3", "mode": "MOUNT_CACHED"},
            "train.py": str(tmp_path / "train.py"),
        },
        "run": "python3 train.py",
    }
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task))
    controller.perdure("jobs", "launch", tmp_path / "task.yaml", "-y", "-d")
    controller.until(lambda: "saved 5" in controller.log(1), "five checkpoints")
    (pod,) = [one["metadata"]["name"] for one in kube.pods()]
    kube.evict(pod, 30)
    controller.until(lambda: controller.job(1)["status"] == "SUCCEEDED", "the end of the job")
    log = controller.log(1)
    assert "is a folder that is uploaded in the background, not a mount: " in log
    starts = [int(step) for step in re.findall(r"continues after (\d+)", log)]
    assert starts[0] == 0
    assert starts[1] >= 5, "what was saved before the eviction"
    assert f"saved {starts[1]}" in log.partition(f"continues after {starts[1]}")[0], "nothing is made up"
    assert controller.job(1)["recovery_count"] == 1
