"""`perdure jobs launch`, from the command line to the exit code of the job."""

from __future__ import annotations

import io
import json
import signal
import tarfile
from pathlib import Path
from typing import Any

import pytest

from support.helpers.timing import scaled
from unit.cli.commands import RunPerdure, StartOnTerminal, StartPerdure
from unit.sdk import contract_server
from unit.sdk.contract_server import Controller

YAML = """\
name: bert
workdir: code
resources:
  accelerators: V100:1
  use_spot: true
envs:
  EPOCHS: 3
  TOKEN: null
run: python train.py
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "train.py").write_text("print('hi')\n")
    (folder / "train.yaml").write_text(YAML)
    monkeypatch.chdir(folder)
    return folder


def submitted(controller: Controller) -> dict[str, Any]:
    (call,) = controller.called("POST /api/v1/jobs")
    body: dict[str, Any] = call[2]
    return body


def test_launch__uploads_and_submits_detached(perdure: RunPerdure, server: Controller, project: Path) -> None:
    result = perdure("jobs", "launch", "train.yaml", "--env", "TOKEN=t", "-d", "-y")
    assert result.exit_code == 0, result.output
    assert "Job 1 (bert) submitted." in result.stdout
    assert "perdure jobs logs 1" in result.stdout
    body = submitted(server)
    assert body["name"] == "bert"
    assert body["user"]
    task = body["tasks"][0]
    assert task["envs"] == {"EPOCHS": "3", "TOKEN": "t"}
    with tarfile.open(fileobj=io.BytesIO(server.uploads[task["workdir"]["upload"]])) as tar:
        assert tar.getnames() == ["train.py"]
    assert "Uploading" in result.stderr


def test_dry_run__shows_candidates_in_order_and_a_forecast(
    perdure: RunPerdure, server: Controller, project: Path
) -> None:
    result = perdure("jobs", "launch", "train.yaml", "--env", "TOKEN=t", "--dryrun")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    rows = [line.split() for line in lines if line.strip()[:1].isdigit()]
    assert [row[1] for row in rows] == [f"local/local/local-{zone}" for zone in "abcabc"]
    assert rows[0] == ["1", "local/local/local-a", "local-4", "4", "16", "-", "spot", "$0.30", "70%"]
    assert "  … and 3 more" in lines
    assert "  The first candidate saves 70% of the on-demand price." in lines
    assert "  Unavailable: local-c spot: no capacity until 01:20" in lines
    assert result.stderr.count("autostop has no meaning") == 1
    assert "  Policy VALUE: the 3 cheapest were seen." in lines
    assert "  Expected cost: $12.50 (80% of runs: $10.00 to $20.25)" in lines
    assert "  Expected finish: in 2h 5m (80% of runs: 2h to 2h 30m)" in lines
    assert "  Missed deadline: 5% of 20 simulated runs" in lines
    assert "  Forecast from 20 simulated runs, based on observations of 3 offers." in lines


def test_forecast__of_few_runs_is_called_rough(
    perdure: RunPerdure, server: Controller, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(contract_server.FORECAST, "runs", 4)
    out = perdure("jobs", "launch", "train.yaml", "--env", "TOKEN=t", "--dryrun").stdout
    assert "  Expected cost: $12.50 (rough)\n  Expected finish: in 2h 5m (rough)\n" in out
    assert "  Missed deadline: 5% of 4 simulated runs\n" in out
    assert "  That is rough: no more runs fitted in the time, and it takes 20 to say how far they spread.\n" in out


def test_launch__does_not_request_a_forecast(perdure: RunPerdure, server: Controller, project: Path) -> None:
    result = perdure("jobs", "launch", "train.yaml", "--env", "TOKEN=t", "-d", "-y")
    (request,) = server.called("POST /api/v1/plan")
    assert "forecast" not in request[2]
    assert "Expected" not in result.stdout


def test_dry_run__changes_nothing(perdure: RunPerdure, server: Controller, project: Path) -> None:
    perdure("jobs", "launch", "train.yaml", "--env", "TOKEN=t", "--dryrun")
    assert server.jobs == server.uploads == {}
    assert server.called("PUT .*") == server.called("POST /api/v1/jobs") == []


def test_confirmation__without_a_terminal_requires_yes(perdure: RunPerdure, server: Controller, project: Path) -> None:
    result = perdure("jobs", "launch", "train.yaml", "--env", "TOKEN=t")
    assert result.exit_code == 2
    assert "add -y" in result.stderr
    assert server.calls == []


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("", 0), ("n", 1)])
def test_confirmation__on_a_terminal(
    on_terminal: StartOnTerminal, server: Controller, project: Path, answer: str, code: int
) -> None:
    server.end_status, server.printed = "SUCCEEDED", b"trained\r\n"
    terminal = on_terminal("jobs", "launch", "train.yaml", "--env", "TOKEN=t")
    terminal.read_until("Launch bert? [Y/n]")
    assert server.jobs == {}
    terminal.write(answer + "\n")
    assert terminal.end() == code
    assert bool(server.jobs) == (code == 0)
    assert ("trained" in terminal.text) == (code == 0)
    assert ("Nothing was changed." in terminal.text) == (code == 1)


@pytest.mark.parametrize(
    ("status", "code"),
    [("SUCCEEDED", 0), ("FAILED", 100), ("FAILED_SETUP", 100), ("FAILED_NO_RESOURCE", 100), ("CANCELLED", 103)],
)
def test_exit_code__is_that_of_the_job(perdure: RunPerdure, server: Controller, status: str, code: int) -> None:
    server.end_status, server.printed = status, b"what it printed\n"
    result = perdure("jobs", "launch", "-y", "echo hi")
    assert result.exit_code == code
    assert result.stdout.endswith("what it printed\n")
    assert f"Job 1 (unnamed) {status}: 8m 20s, 2 recoveries, $0.42 (saved 70%)" in result.stderr


def test_following__survives_broken_connections(in_process: StartPerdure, server: Controller) -> None:
    text = "".join(f"step {number}\n" for number in range(3000))
    server.end_status, server.printed, server.cut_log_at = "SUCCEEDED", text.encode(), [10_000, 10_001]
    process = in_process("jobs", "launch", "-y", "-n", "long", "echo hi")
    out, err = process.communicate(timeout=scaled(60))
    assert process.returncode == 0
    assert out.endswith(" submitted.\n" + text)
    assert "waiting for it" in err


def test_ctrl_c__leaves_the_job_running_with_hints(in_process: StartPerdure, server: Controller) -> None:
    server.end_status, server.printed = "RUNNING", b"step 1\n"
    process = in_process("jobs", "launch", "-y", "echo hi")
    while process.stdout.readline() != "step 1\n":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=scaled(30))
    assert process.returncode == 101
    assert "job 1 keeps running" in err
    assert "perdure jobs logs 1" in err
    assert "perdure jobs cancel 1" in err
    assert server.called("POST .*/cancel") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run: echo\nresources:\n  acelerators: V100\n", "train.yaml:3: resources.acelerators: unknown field"),
        ("run: [echo\n", "train.yaml"),
        ("workdir: nowhere\nrun: echo\n", "'nowhere' does not exist"),
        ("envs: {A: null}\nrun: echo\n", "--env A=VALUE"),
    ],
)
def test_invalid_yaml__is_rejected_before_any_request(
    perdure: RunPerdure, server: Controller, project: Path, text: str, message: str
) -> None:
    (project / "train.yaml").write_text(text)
    result = perdure("jobs", "launch", "train.yaml", "-y")
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert server.calls == []


def test_missing_yaml__suggests_similar_names(perdure: RunPerdure, server: Controller, project: Path) -> None:
    (project / "sub").mkdir()
    (project / "sub" / "train2.yml").write_text(YAML)
    result = perdure("jobs", "launch", "trian.yaml", "-y")
    assert result.exit_code == 2
    assert "trian.yaml does not exist" in result.stderr
    assert "did you mean train.yaml or sub/train2.yml?" in result.stderr
    assert server.calls == []
    result = perdure("jobs", "launch", "qqq.yaml", "-y")
    assert result.exit_code == 2
    assert "qqq.yaml does not exist" in result.stderr
    assert "did you mean" not in result.stderr, "no file has a similar name"
    result = perdure("jobs", "launch", "sub", "-y")
    assert (result.exit_code, server.calls) == (2, [])
    assert "sub is a directory" in result.stderr


def test_plan__says_how_many_jobs_are_launched(
    perdure: RunPerdure, server: Controller, on_terminal: StartOnTerminal
) -> None:
    result = perdure("jobs", "launch", "--dryrun", "--num-jobs", 3, "true")
    assert "3 jobs. The prices below are those of one of them.\n" in result.stdout
    assert "jobs." not in perdure("jobs", "launch", "--dryrun", "true").stdout
    server.answers["sweep"] = 10_000  # combinations
    terminal = on_terminal("jobs", "launch", "-n", "tune", "true")
    terminal.read_until("Launch 10,000 jobs named tune? [Y/n]")
    terminal.write("n\n")
    terminal.end()


def test_launch__as_json_prints_one_document(perdure: RunPerdure, server: Controller) -> None:
    result = perdure("jobs", "launch", "-n", "bert", "-y", "-o", "json", "true")
    assert result.exit_code == 0, "it follows no logs"
    warnings = ["autostop has no meaning for a job"]
    assert json.loads(result.stdout) == {"job_ids": [1], "name": "bert", "warnings": warnings}
    planned = json.loads(perdure("jobs", "launch", "--dryrun", "-o", "json", "true").stdout)
    assert (planned["num_jobs"], planned["tasks"][0]["total_offers"]) == (1, 9)


def test_yaml_with_arguments__is_no_command(perdure: RunPerdure, server: Controller, project: Path) -> None:
    (project / "t.yaml").write_text(YAML)
    result = perdure("jobs", "launch", "-y", "t.yaml", "extra", "arg")
    assert (result.exit_code, server.calls) == (2, [])
    assert "t.yaml is a task YAML, and takes no arguments" in result.stderr
    (project / "t.yaml").chmod(0o755)
    assert perdure("jobs", "launch", "-d", "-y", "--", "./t.yaml", "arg").exit_code == 0, "it can be run"


def test_rejected_task__shows_the_message_of_the_controller(perdure: RunPerdure, server: Controller) -> None:
    result = perdure("jobs", "launch", "-y", "echo no such gpu")
    assert result.exit_code == 2
    assert "tasks[0].resources: no cloud sells this GPU\n  perdure check" in result.stderr
    assert server.jobs == {}


@pytest.mark.parametrize(
    ("words", "run"),
    [
        (["echo $HOME && ls"], "echo $HOME && ls"),
        (["--", "python", "train.py", "--lr", "3e-4"], "python train.py --lr 3e-4"),
        (["--", "python", "-c", "print('a b')"], """python -c 'print('"'"'a b'"'"')'"""),
        (["cat a.yaml"], "cat a.yaml"),
    ],
)
def test_command__becomes_the_run_script(perdure: RunPerdure, server: Controller, words: list[str], run: str) -> None:
    result = perdure("jobs", "launch", "-d", "-y", "-n", "cmd", *words)
    assert result.exit_code == 0, result.output
    body = submitted(server)
    assert body["tasks"][0]["run"] == run
    assert body["name"] == "cmd"


def test_yaml__from_stdin(perdure: RunPerdure, server: Controller) -> None:
    result = perdure("jobs", "launch", "-d", "-y", "-", input="name: piped\nrun: echo")
    assert result.exit_code == 0, result.output
    assert submitted(server)["name"] == "piped"


def test_options__override_the_yaml(perdure: RunPerdure, server: Controller, project: Path) -> None:
    result = perdure(
        *("jobs", "launch", "train.yaml", "-d", "-y", "-n", "other", "--env", "TOKEN=t"),
        *("--infra", "aws/us-east-1", "--gpus", "A100:8", "--cpus", "8+", "--memory", "64", "--num-nodes", "2"),
        *("--no-use-spot", "--disk-size", "200", "--disk-tier", "high", "--labels", "team=nlp", "--priority", "10"),
        *("--job-recovery", "EAGER_NEXT_REGION", "--image-id", "ami-1"),
    )
    assert result.exit_code == 0, result.output
    body = submitted(server)
    task = body["tasks"][0]
    resources = task["resources"]
    assert body["name"] == task["name"] == "other"
    assert task["num_nodes"] == 2
    assert resources["infra"] == "aws/us-east-1"
    assert "A100" in str(resources["accelerators"])
    assert resources.get("use_spot", False) is False
    assert (resources["cpus"], resources["labels"], resources["priority"]) == ("8+", {"team": "nlp"}, 10)
    assert resources["job_recovery"]["strategy"] == "EAGER_NEXT_REGION"


def test_options__legacy_cloud_region_zone(perdure: RunPerdure, server: Controller) -> None:
    assert perdure("jobs", "launch", "-d", "-y", "--cloud", "aws", "--zone", "us-east-1a", "true").exit_code == 0
    assert submitted(server)["tasks"][0]["resources"]["infra"] == "aws/*/us-east-1a"
    result = perdure("jobs", "launch", "-d", "-y", "--cloud", "aws", "--infra", "gcp", "true")
    assert result.exit_code == 2
    assert "use --infra" in result.stderr


def test_options__git_repository_and_settings(perdure: RunPerdure, server: Controller) -> None:
    url = "https://example.com/a.git"
    words = ["--git-url", url, "--git-ref", "v1", "--config", "kubernetes.custom=1", "--config", "aws.vpc_name=v"]
    launched = perdure("jobs", "launch", "-d", "-y", *words, "true")
    assert launched.exit_code == 0, launched.output
    task = submitted(server)["tasks"][0]
    assert task["workdir"] == {"url": url, "ref": "v1"}
    assert task["config"] == {"kubernetes": {"custom": 1}, "aws": {"vpc_name": "v"}}
    assert launched.stderr.count("config.kubernetes.custom: accepted, but has no effect") == 1
    result = perdure("jobs", "launch", "-d", "-y", "--git-url", url, "--workdir", ".", "true")
    assert result.exit_code == 2
    assert "--workdir excludes --git-url" in result.stderr


def test_ignore__launches_without_an_unsupported_field(perdure: RunPerdure, server: Controller, project: Path) -> None:
    (project / "v.yaml").write_text("run: x\nvolumes: {/data: v}\n")
    refused = perdure("jobs", "launch", "v.yaml", "-d", "-y")
    assert refused.exit_code == 2
    assert "v.yaml:2: volumes: it is not mounted" in refused.stderr
    assert "to launch without it: --ignore volumes" in refused.stderr
    assert server.calls == []
    launched = perdure("jobs", "launch", "v.yaml", "-d", "-y", "--ignore", "volumes")
    assert launched.exit_code == 0, launched.output
    assert submitted(server)["tasks"] == [{"run": "x"}]
    assert launched.stderr.count("volumes: ignored: it is not mounted") == 1


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["python", "train.py", "--lr", "3"], "write -- before the command: -- python train.py --lr 3"),
        (["--gpus", "V100", "python", "-u", "train.py"], "write -- before the command: -- python -u train.py"),
        (["train.yaml", "--lr", "3"], None),
        (["--lr", "3", "train.py"], None),
    ],
)
def test_unknown_option__of_a_command_names_the_separator(
    perdure: RunPerdure, server: Controller, words: list[str], hint: str | None
) -> None:
    result = perdure("jobs", "launch", "-y", *words)
    assert result.exit_code == 2
    assert "No such option" in result.stderr
    assert (" ".join(result.stderr.split()).endswith(hint)) if hint else ("before the command" not in result.stderr)
    assert server.calls == []


def test_options__errors_name_the_option(perdure: RunPerdure, server: Controller) -> None:
    result = perdure("jobs", "launch", "-y", "--cpus", "many", "true")
    assert result.exit_code == 2
    assert "--cpus" in result.stderr
    result = perdure("jobs", "launch", "-y", "--labels", "team", "true")
    assert result.exit_code == 2
    assert "--labels" in result.stderr
    assert server.calls == []


def test_variables__from_files_options_and_environment(
    perdure: RunPerdure, server: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.env").write_text("# mine\nexport A='from file'\nB=file # why\nURL=x=y==\n")
    (tmp_path / "s.env").write_text('KEY="line 1\\nline 2"\n')
    monkeypatch.setenv("MINE", "my own")
    result = perdure(
        *("jobs", "launch", "-d", "-y", "--env-file", tmp_path / "a.env", "--env", "B=option", "--env", "MINE"),
        *("--secret-file", tmp_path / "s.env", "--secret", "PASS=a=b", "echo"),
    )
    assert result.exit_code == 0, result.output
    task = submitted(server)["tasks"][0]
    assert task["envs"] == {"A": "from file", "B": "option", "URL": "x=y==", "MINE": "my own"}
    assert task["secrets"] == {"KEY": "line 1\nline 2", "PASS": "a=b"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE has no value and is not set in your environment"),
        (["--env-file", "no.env"], "no.env: cannot read the env file: it does not exist\n  relative paths start at /"),
        (["--secret", "=x"], "--secret: '' is not a variable name"),
    ],
)
def test_variables__invalid_ones_are_rejected(
    perdure: RunPerdure, server: Controller, words: list[str], message: str
) -> None:
    result = perdure("jobs", "launch", "-y", *words, "true")
    assert result.exit_code == 2
    assert message in result.stderr
    assert server.calls == []


def test_launch__warns_of_another_controller_version(perdure: RunPerdure, server: Controller) -> None:
    server.version = "9.9.9"
    result = perdure("jobs", "launch", "-d", "-y", "true")
    assert result.exit_code == 0
    assert "the controller is version 9.9.9" in result.stderr


def test_launch__warns_of_a_configuration_that_was_not_read(perdure: RunPerdure, server: Controller) -> None:
    server.config_changed = True
    assert "config.yaml was changed after" in perdure("jobs", "launch", "--dryrun", "true").stderr
