"""The examples, launched as their comments say, on the local cloud."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.helpers.controllers import Controller
from support.helpers.timing import scaled

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def submitted(controller: Controller, *words: str) -> int:
    output = controller.perdure("jobs", "launch", *words, "--detach-run", "--yes")
    match = re.search(r"[Jj]ob(?: ID:?)? (\d+)", output.stdout + output.stderr)
    assert match, output
    return int(match[1])


def test_chain__reads_its_settings_from_the_env_file(controller: Controller) -> None:
    done = controller.perdure("jobs", "launch", "examples/chain.yaml", "--env-file", "examples/.env.example", "--yes")
    assert "What follows what, by the sea" in done.stdout
    assert "1_corpus.sh: task sky-managed-" in done.stdout


def test_fine_tuning__gets_a_simulated_gpu(controller: Controller) -> None:
    job_id = submitted(controller, "examples/bert_qa.yaml")
    job = controller.until(lambda: ended(controller, job_id), "the end of the job")
    assert job["status"] == "SUCCEEDED", controller.log(job_id)
    assert "v100" in job["cluster_resources"].lower()
    assert re.search(r"step 4000 loss \S+ exact match (9\d\.\d|100\.0)", controller.log(job_id))


def test_demo__runs_as_described() -> None:
    demo = [sys.executable, "-m", "examples.demo"]
    done = subprocess.run(demo, cwd=ROOT, capture_output=True, text=True, timeout=scaled(200), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "to the last digit" in done.stdout


def ended(controller: Controller, job_id: int) -> dict[str, Any] | None:
    job: dict[str, Any] = controller.job(job_id)
    return job if job["ended_at"] else None
