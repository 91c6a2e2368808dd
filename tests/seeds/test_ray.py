"""Ray on two nodes, as the Model Training Guide describes it, with the real Ray (scripts/ensure-ray.sh)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest

from seeds.documents import TRAINING_GUIDE
from seeds.image import STAND_INS, Computer
from support.helpers.controllers import ROOT

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not (ROOT / "build/ray/.installed").exists(), reason="Ray is not installed: run scripts/ensure-ray.sh"
    ),
]
RAY_S = 240.0
KILL_WORKERS = TRAINING_GUIDE.take('pkill -f "ray start --address"')
KILL_HEAD = TRAINING_GUIDE.take('pkill -f "ray start --head --port=<your_port>"')
START = TRAINING_GUIDE.take("ray start")
AUTO = TRAINING_GUIDE.take('ray.init(address="auto")')
STOP = TRAINING_GUIDE.take("ray stop")
SHUTDOWN = TRAINING_GUIDE.take("ray.shutdown()")

# As in the example that the guide links to: workers start Ray and end, the head trains.
TRAIN = f"""
num_nodes: 2
workdir: .
setup: |
  conda activate ray
  if [ $? -ne 0 ]; then
    conda create -n ray python=3.10 -y
    conda activate ray
  fi
  pip install "ray[train]"
run: |
  conda activate ray
  head_ip=`echo "$SKYPILOT_NODE_IPS" | head -n1`
  num_nodes=`echo "$SKYPILOT_NODE_IPS" | wc -l`
  if [ "$SKYPILOT_NODE_RANK" == "0" ]; then
    ps aux | grep ray | grep 6379 &> /dev/null || {START.text} --head --disable-usage-stats --port 6379
    sleep 5
    python train.py --num-workers $num_nodes
  else
    sleep 5
    ps aux | grep ray | grep 6379 &> /dev/null || {START.text} --address $head_ip:6379 --disable-usage-stats
  fi
"""
DATA = f"""
num_nodes: 2
run: |
  conda activate ray
  ~/sky_templates/ray/start_cluster
  if [ "$SKYPILOT_NODE_RANK" = 0 ]; then
    python data.py
    {KILL_WORKERS.here}
    {KILL_HEAD.here.replace("<your_port>", "6379")}
    {STOP.text}
  fi
"""
LEFT = "num_nodes: 2\nrun: echo left $(pgrep -fc 'raylet|gcs_server')\n"


@pytest.fixture(scope="module")
def cluster(local: Computer) -> Iterator[Computer]:
    shutil.copytree(STAND_INS / "ray-training", local.project, dirs_exist_ok=True)
    local.write("train.yaml", TRAIN)
    local.write("data.yaml", DATA)
    local.write("left.yaml", LEFT)
    yield local
    local.user.types("perdure down ray")


def test_ray__runs_on_two_nodes_and_ends_with_its_job(cluster: Computer) -> None:
    """One test, since Ray's ports are fixed: two heads cannot run on one computer at a time."""
    types = cluster.user.types
    screen = types("perdure launch -c ray --num-nodes 2 train.yaml", limit_s=RAY_S)
    assert "(rank 0) trained on 2 nodes\n" in screen
    trained = set(re.findall(r"worker ([01]) on \S+-([01])\n", screen))
    assert len(trained) == 2, "each worker is on a node of its own"
    assert {worker for worker, _ in trained} == {node for _, node in trained} == {"0", "1"}

    script = (STAND_INS / "ray-training/data.py").read_text()
    assert AUTO.text in script
    assert SHUTDOWN.text in script
    screen = types("perdure exec ray data.yaml --workdir .", limit_s=RAY_S)
    assert "(rank 0) All 2 nodes have joined.\n" in screen
    assert f"sum {sum(n * n for n in range(1000))} alive 2\n" in screen

    screen = types("perdure exec ray left.yaml")
    assert screen.count("left 0\n") == 2, screen
