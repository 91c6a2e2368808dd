"""The examples run as scripts, without a controller: they resume from interruptions as they claim."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure.sdk as perdure
from support.helpers.example_scripts import EXAMPLES, ROOT, finish, start, start_two

YAMLS = sorted(EXAMPLES.rglob("*.yaml"))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The environment that an agent gives the workload."""
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def ask_to_stop(processes: list[subprocess.Popen[str]], run_dir: Path) -> None:
    """Write the notice file, then send SIGTERM, as the agent does."""
    (run_dir / "notice.json").write_text(json.dumps({"deadline": None, "reason": "PREEMPTION_NOTICE"}))
    for process in processes:
        process.send_signal(signal.SIGTERM)


def lines_until(process: subprocess.Popen[str], text: str) -> Iterator[str]:
    assert process.stdout is not None
    for line in process.stdout:
        yield line
        if text in line:
            return
    pytest.fail(f"it ended without {text!r}")


def test_interrupted_training__reaches_the_same_loss(tmp_path: Path, run_dir: Path) -> None:
    whole = finish(start("numpy_train/train.py", "--checkpoints", tmp_path / "a", run_dir=run_dir))

    cut = start("numpy_train/train.py", "--checkpoints", tmp_path / "b", "--step-s", 0.002, run_dir=run_dir)
    list(lines_until(cut, "step 240 "))
    ask_to_stop([cut], run_dir)
    saved = finish(cut)[-1]
    assert saved.startswith("saved step ")
    (run_dir / "notice.json").unlink()

    rest = finish(start("numpy_train/train.py", "--checkpoints", tmp_path / "b", run_dir=run_dir))
    step = int(saved.split()[2].rstrip(":"))
    assert rest[0] == f"resumed from step {step}"
    assert rest[-1] == whole[-1]
    assert "step 1000 final loss" in whole[-1]

    again = finish(start("numpy_train/train.py", "--checkpoints", tmp_path / "a", run_dir=run_dir))
    assert again[0].startswith(f"{tmp_path / 'a'} holds a finished run: nothing to train.")
    assert again[1:] == whole[-1:]


def test_killed_training__resumes_from_its_last_checkpoint(tmp_path: Path, run_dir: Path) -> None:
    cut = start("numpy_train/train.py", "--checkpoints", tmp_path, "--step-s", 0.002, run_dir=run_dir)
    list(lines_until(cut, "step 240 "))
    cut.kill()
    cut.communicate()
    rest = finish(start("numpy_train/train.py", "--checkpoints", tmp_path, run_dir=run_dir))
    assert rest[0] == "resumed from step 200"


@pytest.mark.parametrize("script", ["train_plain.py", pytest.param("train_torch.py", marks=pytest.mark.slow)])
def test_two_nodes__stop_after_the_same_step_and_resume_together(tmp_path: Path, run_dir: Path, script: str) -> None:
    if script == "train_torch.py" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    quiet = tmp_path / "quiet"
    quiet.mkdir()

    def group(folder: str, steps: int, step_s: float = 0.0) -> list[subprocess.Popen[str]]:
        # Only rank 0 receives the notice.
        given = ("--checkpoints", tmp_path / folder, "--steps", steps, "--step-s", step_s)
        return start_two(f"mingpt_ddp/{script}", *given, run_dirs=[run_dir, quiet])

    first, second = nodes = group("cut", steps=1000, step_s=0.02)
    list(lines_until(first, "step 5 "))
    ask_to_stop(nodes[:1], run_dir)
    ends = [finish(first)[-1], finish(second)[-1]]
    steps = {line.split()[5].rstrip(":") for line in ends}
    assert all("stops at step" in line for line in ends)
    assert len(steps) == 1
    (run_dir / "notice.json").unlink()

    last = int(next(iter(steps))) + 3
    again = [finish(node) for node in group("cut", steps=last)]
    assert {log[1].split("from step ")[1] for log in again} == steps
    whole = [finish(node) for node in group("whole", steps=last)]
    assert [log[-3:] for log in again] == [log[-3:] for log in whole]
    assert f"step {last} loss" in whole[0][-1]


def test_question_answering__learns(tmp_path: Path, run_dir: Path) -> None:
    folder = tmp_path / "out"
    log = finish(start("bert_qa/run_qa.py", "--output_dir", folder, "--max_steps", 1000, run_dir=run_dir))
    assert float(log[-1].rpartition(" ")[2]) > 95
    again = finish(start("bert_qa/run_qa.py", "--output_dir", folder, "--max_steps", 1000, run_dir=run_dir))
    assert again[0].endswith("from step 1000")

    more = ("--max_steps", 1000, "--logging_steps", 100)
    cut = start("bert_qa/run_qa.py", "--output_dir", tmp_path / "cut", *more, run_dir=run_dir)
    list(lines_until(cut, "step 100 "))
    ask_to_stop([cut], run_dir)
    assert finish(cut)[-1].startswith("stops at step ")
    (run_dir / "notice.json").unlink()
    rest = finish(start("bert_qa/run_qa.py", "--output_dir", tmp_path / "cut", *more, run_dir=run_dir))
    whole = finish(start("bert_qa/run_qa.py", "--output_dir", tmp_path / "whole", *more, run_dir=run_dir))
    assert rest[-1] == whole[-1]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_interrupted_hugging_face_trainer__ends_with_the_same_result(tmp_path: Path, run_dir: Path) -> None:
    if missing := [name for name in ("torch", "transformers", "accelerate") if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed")

    def train(folder: str) -> subprocess.Popen[str]:
        return start("hf_trainer/train.py", "--output_dir", tmp_path / folder, "--max_steps", 400, run_dir=run_dir)

    cut = train("cut")
    list(lines_until(cut, "{'loss'"))
    ask_to_stop([cut], run_dir)
    stopped = re.search(r"ends at step (\d+):", finish(cut, timeout_s=200)[-1])
    (run_dir / "notice.json").unlink()
    assert stopped is not None
    assert int(stopped[1]) < 400
    rest, whole = (finish(train(folder), timeout_s=200) for folder in ("cut", "whole"))
    assert f"task - begins from {tmp_path / 'cut'}/checkpoint-{stopped[1]}" in rest
    assert rest[-1] == whole[-1]


def test_restarted_chain__repeats_nothing(tmp_path: Path) -> None:
    def run(**env: str) -> list[str]:
        settings = perdure.Task.from_yaml(EXAMPLES / "chain.yaml").to_yaml_config()["envs"]
        environ = {**os.environ, **settings, "OUTPUTS": str(tmp_path), "SKYPILOT_TASK_ID": "test", **env}
        done = subprocess.run(
            [EXAMPLES / "chain/run.sh"], env=environ, capture_output=True, text=True, check=not env.get("BROKEN")
        )
        return done.stdout.splitlines()

    # The last step fails half-way, since it needs a number.
    broken = run(REPORT_PAIRS="many", BROKEN="1")
    assert broken[-1] == "3_report.sh: task test"
    assert not (tmp_path / "3_report.txt").exists()
    mended = run()
    assert mended[:3] == ["1_corpus.sh: done before", "2_counts.sh: done before", "3_report.sh: task test"]
    assert mended[3:] == (tmp_path / "3_report.txt").read_text().splitlines()
    assert run()[2] == "3_report.sh: done before"


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_examples__are_tasks_whose_files_exist(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    task = perdure.Task.from_yaml(path)
    task.check_local_paths()
    assert task.run


def test_chain_env_file__names_the_variables_of_the_chain() -> None:
    from perdure.sdk.files import env_file

    given = env_file.read_env_file(EXAMPLES / ".env.example", environ={})
    known = perdure.Task.from_yaml(EXAMPLES / "chain.yaml").to_yaml_config()["envs"]
    assert set(given) <= set(known)
