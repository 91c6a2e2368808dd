"""The end of Tigris' guide "Training with Big Data": the fine-tuned model becomes a service, is called, and ends.

The commands are the guide's, with `perdure` for `sky`, and with the token. A small program stands for vLLM, which
needs a GPU. The YAML has the traps of the original: `setup` takes longer than `initial_delay_seconds`, variables come
from `.env`, the accelerator is in small letters, and callers speak OpenAI's protocol.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.helpers.services import HAS_HAPROXY, PROGRAM, ServiceHost, running_services
from support.helpers.timing import scaled

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_HAPROXY, reason="HAProxy is not installed: run scripts/ensure-haproxy.sh"),
]

SERVICE = """
service:
  readiness_probe:
    path: /v1/models
    initial_delay_seconds: 5
  replicas: 2

resources:
  ports: 8080
  accelerators: [T4:1, A10g:1]

envs:
  AWS_ACCESS_KEY_ID:
  MODEL_NAME:
  LOAD_S: 1

workdir: .

setup: |
  sleep 6
  echo "$AWS_ACCESS_KEY_ID" > ~/credentials

run: |
  export MODEL="/home/ubuntu/tigris/done/$MODEL_NAME/fused"
  test "$SKYPILOT_NUM_GPUS_PER_NODE" = 1
  python3 server.py 8080
"""
CHAT = {"messages": [{"role": "user", "content": "Who are you?"}]}


@pytest.fixture(scope="module")
def sky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceHost]:
    with running_services(tmp_path_factory.mktemp("home"), "local: {accelerators: {A10G: 1}}\n") as one:
        yield one


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    shutil.copy(PROGRAM, tmp_path / "server.py")
    (tmp_path / "service.yaml").write_text(SERVICE)
    (tmp_path / ".env").write_text("AWS_ACCESS_KEY_ID=tid_canary\nMODEL_NAME=Qwen/Qwen2.5-0.5B\n")
    return tmp_path


def run(sky: ServiceHost, folder: Path, command: str) -> str:
    """What a command of the guide prints. `perdure` is this checkout's."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    path = f"{Path(sys.executable).parent}:{environ['PATH']}"
    environ |= {"PERDURE_HOME": str(sky.controller.home), "PATH": path}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=scaled(90),
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_guide__serves_the_model_and_ends_it(sky: ServiceHost, repository: Path) -> None:
    started = run(sky, repository, "perdure serve up -n mymodel service.yaml --env-file .env --yes")
    assert "endpoint:  http://127.0.0.1:30" in started
    # Called at once, before a replica is ready: the request is held.
    curl = (
        "curl --silent --show-error $(perdure serve status mymodel --endpoint)/v1/chat/completions -X POST "
        f"-d '{json.dumps(CHAT)}' -H 'Content-Type: application/json' "
        '-H "Authorization: Bearer $(perdure serve status mymodel --token)"'
    )
    answer = json.loads(run(sky, repository, curl))
    assert answer["choices"][0]["message"]["content"].startswith("I am replica ")
    service = sky.until_ready("mymodel", 2)
    assert {one["number"] for one in service["replicas"]} == {1, 2}, "no replica was given up while it was set up"
    assert all("A10G:1" in one["resources"] for one in service["replicas"])
    models = run(sky, repository, curl.replace("/v1/chat/completions -X POST", "/v1/models -X GET"))
    assert json.loads(models)["data"][0]["id"] == "/home/ubuntu/tigris/done/Qwen/Qwen2.5-0.5B/fused"
    stream = curl.replace(json.dumps(CHAT), json.dumps({**CHAT, "stream": True, "max_tokens": 3}))
    assert run(sky, repository, stream).rstrip().endswith("data: [DONE]")
    assert "Service mymodel terminated." in run(sky, repository, "perdure serve down mymodel --yes")
    sky.controller.until(sky.no_machines, "the end of every machine")
    assert "No live services." in run(sky, repository, "perdure serve status")
