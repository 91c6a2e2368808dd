"""`~/sky_templates/ray/start_cluster` with a `ray` that notes how it is called."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from perdure.agent.workload.library import library_dir
from perdure.agent.workload.tools.templates import FOLDER

START = library_dir(Path("/nonexistent")) / FOLDER / "ray/start_cluster"
# Fails the first `start` if there is a file "refuse"; with a file "end", `start` hangs and the head answers no more.
# With a file "busy", the head misses three health checks after the first `start`, which lasts until the next one if
# there is a file "slow". A call of `list` shows one node more each time.
RAY = """#!/bin/sh
echo "$*" >> "$NOTES/calls"
case "$1" in
    start)
        touch "$NOTES/started"
        [ ! -e "$NOTES/end" ] || { touch "$NOTES/ended"; exec /bin/sleep 600; }
        while [ -e "$NOTES/slow" ]; do /bin/sleep 0.05; done
        ! rm "$NOTES/refuse" 2>/dev/null ;;
    health-check)
        if [ -e "$NOTES/busy" ] && [ -e "$NOTES/started" ]; then
            echo x >> "$NOTES/busy"
            [ "$(wc -l < "$NOTES/busy")" -gt 3 ] || exit 1
            rm "$NOTES/busy"
            rm -f "$NOTES/slow"
        fi
        [ ! -e "$NOTES/ended" ] ;;
    list) echo x >> "$NOTES/listed"; sed 's/x/{"node_id": 1},/' "$NOTES/listed" | tr -d '\\n' ;;
esac
"""


class RayNode:
    """A node of two, on which nothing sleeps."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder
        for name, text in (("ray", RAY), ("sleep", "#!/bin/sh\n"), ("pgrep", "#!/bin/sh\n[ -e $NOTES/runs ]\n")):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.environ = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "NOTES": str(folder),
            "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
            "SKYPILOT_NUM_NODES": "2",
            "SKYPILOT_NUM_GPUS_PER_NODE": "4",
        }

    def start(self, rank: int, **environ: str) -> subprocess.CompletedProcess[str]:
        env = {**self.environ, "SKYPILOT_NODE_RANK": str(rank), **environ}
        return subprocess.run([START], env=env, capture_output=True, text=True, check=False)

    def calls(self, command: str) -> list[str]:
        return [line for line in (self.notes / "calls").read_text().splitlines() if line.startswith(command)]


@pytest.fixture
def node(tmp_path: Path) -> RayNode:
    return RayNode(tmp_path)


def test_head__waits_until_all_nodes_have_joined(node: RayNode) -> None:
    done = node.start(0)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("All 2 nodes have joined.\n")
    (call,) = node.calls("start")
    assert call == (
        "start --head --port=6379 --dashboard-port=8265 --dashboard-host=127.0.0.1 --include-dashboard=true "
        "--disable-usage-stats --node-ip-address=10.0.0.1 --num-gpus=4"
    )
    assert len(node.calls("list")) == 2


def test_worker__joins_the_head_and_tries_again(node: RayNode) -> None:
    (node.notes / "refuse").touch()
    assert node.start(1, RAY_HEAD_PORT="6400", SKYPILOT_NUM_GPUS_PER_NODE="0").returncode == 0
    joined = "start --address=10.0.0.1:6400 --disable-usage-stats --node-ip-address=10.0.0.2"
    assert node.calls("start") == [joined, joined]


def test_worker__ends_when_the_head_has_ended_meanwhile(node: RayNode) -> None:
    """The head's work was short. `ray start` would ask it for minutes, and the job would fail."""
    (node.notes / "end").touch()
    done = node.start(1)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("The head of Ray at 10.0.0.1:6379 has ended.\n")
    assert len(node.calls("start")) == 1
    assert len(node.calls("health-check")) >= 11, "ten in a row without an answer"


@pytest.mark.parametrize(("start", "starts"), [("slow", 1), ("refuse", 2)])
def test_worker__takes_a_busy_head_for_no_ended_one(node: RayNode, start: str, starts: int) -> None:
    """The head misses health checks while many nodes join: a join under way goes on, and a failed one is repeated."""
    for name in ("busy", start):
        (node.notes / name).touch()
    done = node.start(1)
    assert done.returncode == 0, done.stderr
    assert "has ended" not in done.stdout
    assert len(node.calls("start")) == starts
    assert not (node.notes / "busy").exists(), "no health check was missed"


def test_settings__are_those_of_skypilot(node: RayNode) -> None:
    (node.notes / "wrapped").write_text('#!/bin/sh\nshift\nexec ray "$@"\n')
    (node.notes / "wrapped").chmod(0o755)
    done = node.start(
        0,
        RAY_CMD="wrapped run",
        RAY_DASHBOARD_PORT="8280",
        RAY_DASHBOARD_HOST="0.0.0.0",
        RAY_DASHBOARD_AGENT_LISTEN_PORT="52366",
        RAY_HEAD_IP_ADDRESS="10.9.9.9",
    )
    assert done.returncode == 0, done.stderr
    (call,) = node.calls("start")
    for option in (
        "--dashboard-port=8280",
        "--dashboard-host=0.0.0.0",
        "--dashboard-agent-listen-port=52366",
        "--node-ip-address=10.9.9.9",
    ):
        assert option in call.split()


def test_start__does_nothing_where_ray_runs(node: RayNode) -> None:
    (node.notes / "runs").touch()
    assert node.start(1).stdout.endswith("Ray runs already.\n")
    assert node.calls("start") == []


def test_start__in_setup_says_where_it_belongs(node: RayNode) -> None:
    done = subprocess.run([START], env=node.environ, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "call this in run" in done.stderr
