"""Each training example loses its machine on the local cloud twice, with a notice and without, and ends where a run
ends that is not interrupted: its last loss is compared, as text, with that of the same script run alone."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.helpers.controllers import Controller, ControllerOn
from support.helpers.example_scripts import finish, start, start_two

pytestmark = pytest.mark.timeout(900)
TIMEOUT_S = 240.0  # a busy machine takes a minute to import a framework, and each attempt does it anew
ONE_THREAD = ("--env", "OMP_NUM_THREADS=1")  # adds numbers up in one order


@pytest.fixture
def controller(tmp_path: Path, controller_on: ControllerOn) -> Iterator[Controller]:
    """One per example: a second job on the same bucket would resume where the first one ended."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text("local: {accelerators: {V100: 8}}\n")
    with controller_on(home) as one:
        yield one


def needs(*modules: str) -> None:
    if missing := [name for name in modules if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed")


@dataclass(frozen=True)
class Preempted:
    """The result of a job that was preempted twice: the log of each attempt, and the first step of the first
    replacement."""

    attempts: list[str]
    first_resumed: int


def preempted_twice(
    controller: Controller, *words: object, progress: str, notice_at: float, kill_at: float, resumes: str, node: int = 0
) -> Preempted:
    """Launch with the arguments `words`, take a node away with a notice, then another at once; the job must succeed.

    `progress` matches the progress, as (a number), and `resumes` the step at which an attempt resumed. `notice_at` and
    `kill_at`: the progress at which the nodes are taken.
    """
    launched = controller.perdure("jobs", "launch", *words, "--detach-run", "--yes")
    matches = re.search(r"Job (\d+)", launched.stdout + launched.stderr)
    assert matches, launched
    job_id = int(matches[1])
    task_id = controller.job(job_id)["task_id"]

    def attempts() -> list[str]:
        return re.split(r"^--- attempt \d+ on .*\n", controller.log(job_id), flags=re.M)[1:]

    def reached(attempt: int, far: float) -> bool:
        assert not controller.job(job_id)["ended_at"], controller.log(job_id)
        path = controller.home / "logs" / str(job_id) / "0" / str(attempt) / f"{node}.log"
        return path.exists() and any(float(n) >= far for n in re.findall(progress, path.read_text()))

    controller.until(lambda: reached(1, notice_at), f"{notice_at} in the first attempt", TIMEOUT_S)
    controller.perdure("jobs", "preempt", job_id, "--node", node, "--notice", 20)
    controller.until(lambda: reached(2, kill_at), f"{kill_at} in the second attempt", TIMEOUT_S)
    controller.perdure("jobs", "preempt", job_id, "--node", node, "--kill")
    controller.until(lambda: controller.job(job_id)["ended_at"], "the end of the job", TIMEOUT_S)

    job, logs = controller.job(job_id), attempts()
    assert job["status"] == "SUCCEEDED", "\n".join(logs)
    assert job["recovery_count"] == 2
    assert [attempt["reason"] for attempt in job["attempts"]] == ["PREEMPTION_NOTICE", "PREEMPTED", "COMPLETED"]
    assert len(logs) == 3
    assert job["task_id"] == task_id
    for log in logs:
        assert set(re.findall(r"\btask (sky-managed-\S+)", log)) == {task_id}
    none, after_notice, after_kill = [{int(step) for step in re.findall(resumes, log)} for log in logs]
    assert none == set()
    assert len(after_notice) == len(after_kill) == 1, "every node goes on from the same step"
    assert 0 < max(after_notice) <= max(after_kill)
    return Preempted(logs, max(after_notice))


@pytest.mark.slow
def test_preempted_example__numpy(controller: Controller, tmp_path: Path) -> None:
    job = preempted_twice(
        controller,
        "examples/numpy_train/train.yaml",
        progress=r"step (\d+) loss",
        notice_at=240,
        kill_at=480,
        resumes=r"resumed from step (\d+)",
    )
    assert f"saved step {job.first_resumed}: this machine is being taken away" in job.attempts[0]
    whole = finish(start("numpy_train/train.py", "--checkpoints", tmp_path / "whole", run_dir=tmp_path))
    assert losses(r"final loss (\S+)", job.attempts[-1]) == losses(r"final loss (\S+)", whole[-1])


@pytest.mark.slow
def test_preempted_example__question_answering(controller: Controller, tmp_path: Path) -> None:
    job = preempted_twice(
        controller,
        *("examples/bert_qa.yaml", "--env", "STEP_S=0.01"),
        progress=r"step (\d+) loss",
        notice_at=1000,
        kill_at=2000,
        resumes=r"from step ([1-9]\d*)",
    )
    assert f"stops at step {job.first_resumed}: this machine is being taken away" in job.attempts[0]
    whole = finish(start("bert_qa/run_qa.py", "--output_dir", tmp_path / "whole", run_dir=tmp_path))
    assert losses(r"step 4000 (loss .*)", job.attempts[-1]) == losses(r"step 4000 (loss .*)", whole[-1])


@pytest.mark.parametrize(
    "trainer", [pytest.param("plain", marks=pytest.mark.slow), pytest.param("torch", marks=pytest.mark.long)]
)
def test_preempted_example__two_nodes_of_one_model(controller: Controller, tmp_path: Path, trainer: str) -> None:
    """Node 1 is lost, and node 0 ends with it. A sum of two numbers does not depend on their order."""
    if trainer == "torch":
        needs("torch")
    steps = 150
    job = preempted_twice(
        controller,
        *("examples/mingpt_ddp.yaml", "--env", f"TRAINER={trainer}", "--env", f"STEPS={steps}", *ONE_THREAD),
        progress=r"rank 1 step (\d+) ",
        notice_at=25,
        kill_at=80,
        resumes=r"rank [01] resumes from step (\d+)",
        node=1,
    )
    stopped = re.findall(r"rank [01] stops at step (\d+)", job.attempts[0])
    assert stopped == [str(job.first_resumed)] * 2
    options = ("--checkpoints", tmp_path / "whole", "--steps", steps)
    nodes = start_two(f"mingpt_ddp/train_{trainer}.py", *options, run_dirs=[tmp_path, tmp_path])
    for rank, node in enumerate(nodes):
        last = rf"rank {rank} step {steps} (loss .*)"
        assert losses(last, job.attempts[-1]) == losses(last, "\n".join(finish(node, timeout_s=200)))


@pytest.mark.long
def test_preempted_example__hugging_face_trainer(controller: Controller, tmp_path: Path) -> None:
    needs("torch", "transformers", "accelerate")
    job = preempted_twice(
        controller,
        *("examples/hf_trainer.yaml", *ONE_THREAD),
        progress=r"'epoch': '?([\d.]+)",
        notice_at=2,
        kill_at=5,
        resumes=r"begins from \S+/checkpoint-(\d+)",
    )
    assert f"ends at step {job.first_resumed}: " in job.attempts[0]
    options = ("--output_dir", tmp_path / "whole", "--max_steps", 400)
    whole = start("hf_trainer/train.py", *options, run_dir=tmp_path)
    last = r"ends at step 400: (loss .*)"  # and the sum of the weights
    assert losses(last, job.attempts[-1]) == losses(last, finish(whole, timeout_s=200)[-1])


def losses(pattern: str, log: str) -> list[str]:
    matches = re.findall(pattern, log)
    assert len(matches) == 1, f"{pattern} in {log}"
    return matches
