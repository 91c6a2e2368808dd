"""The examples, launched as their comments say, on the local cloud."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def submitted(controller: Any, *words: str) -> int:
    output = controller.perdure("jobs", "launch", *words, "--detach-run", "--yes")
    found = re.search(r"[Jj]ob(?: ID:?)? (\d+)", output.stdout + output.stderr)
    assert found, output
    return int(found[1])


def test_the_chain_takes_its_settings_from_the_env_file(controller: Any) -> None:
    done = controller.perdure("jobs", "launch", "examples/chain.yaml", "--env-file", "examples/.env.example", "--yes")
    assert "What follows what, by the sea" in done.stdout
    assert "1_corpus.sh: task sky-managed-" in done.stdout


def test_the_fine_tuning_job_gets_a_pretended_gpu(controller: Any) -> None:
    job_id = submitted(controller, "examples/bert_qa.yaml")
    job = controller.until(lambda: ended(controller, job_id), "the end of the job")
    assert job["status"] == "SUCCEEDED", controller.log(job_id)
    assert "v100" in job["cluster_resources"].lower()
    assert re.search(r"step 4000 loss \S+ exact match (9\d\.\d|100\.0)", controller.log(job_id))


def test_the_demo_keeps_its_promises() -> None:
    demo = [sys.executable, "-m", "examples.demo"]
    done = subprocess.run(demo, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "to the last digit" in done.stdout


def ended(controller: Any, job_id: int) -> dict[str, Any] | None:
    job: dict[str, Any] = controller.job(job_id)
    return job if job["ended_at"] else None
