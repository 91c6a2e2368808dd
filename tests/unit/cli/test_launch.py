"""`perdure jobs launch`, from the words on the command line to the job's exit code."""

from __future__ import annotations

import io
import signal
import tarfile

import pytest

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
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "train.py").write_text("print('hi')\n")
    (folder / "train.yaml").write_text(YAML)
    monkeypatch.chdir(folder)
    return folder


def submitted(controller):
    (call,) = controller.called("POST /api/v1/jobs")
    return call[2]


def test_launch_and_detach(perdure, named, project):
    result = perdure("jobs", "launch", "train.yaml", "--env", "TOKEN=t", "-d", "-y")
    assert result.exit_code == 0, result.output
    assert "Job 1 (bert) is submitted." in result.stdout
    assert "perdure jobs logs 1" in result.stdout
    body = submitted(named)
    assert body["name"] == "bert"
    assert body["user"]
    task = body["tasks"][0]
    assert task["envs"] == {"EPOCHS": "3", "TOKEN": "t"}
    with tarfile.open(fileobj=io.BytesIO(named.uploads[task["workdir"]["upload"]])) as tar:
        assert tar.getnames() == ["train.py"]
    assert "Uploading" in result.stderr


def test_the_plan_is_shown_in_the_order_in_which_it_would_be_tried(perdure, named, project):
    result = perdure("jobs", "launch", "train.yaml", "--env", "TOKEN=t", "--dryrun")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    rows = [line.split() for line in lines if line.strip()[:1].isdigit()]
    assert [row[1] for row in rows] == [f"local/local/local-{zone}" for zone in "abcabc"]
    assert rows[0] == ["1", "local/local/local-a", "local-4", "4", "16", "-", "spot", "$0.30", "70%"]
    assert "  … and 3 more" in lines
    assert "  The first saves 70% of the on-demand price." in lines
    assert "  Not now: local-c spot: no capacity until 01:20" in lines
    assert result.stderr.count("autostop has no meaning") == 1
    assert "  Policy VALUE: the 3 cheapest were seen." in lines
    assert "  Expected cost $12.50 (8 times in 10: $10.00 to $20.25)" in lines
    assert "  Expected end in 2h 5m (8 times in 10: 2h to 2h 30m)" in lines
    assert "  After its deadline: 5% of 20 simulated runs" in lines
    assert "  From 20 simulated runs, by what was learned of 3 offers." in lines


def test_a_launch_does_not_wait_for_a_forecast(perdure, named, project):
    result = perdure("jobs", "launch", "train.yaml", "--env", "TOKEN=t", "-d", "-y")
    (asked,) = named.called("POST /api/v1/plan")
    assert "forecast" not in asked[2]
    assert "Expected" not in result.stdout


def test_a_dry_run_changes_nothing(perdure, named, project):
    perdure("jobs", "launch", "train.yaml", "--env", "TOKEN=t", "--dryrun")
    assert named.jobs == named.uploads == {}
    assert named.called("PUT .*") == named.called("POST /api/v1/jobs") == []


def test_without_a_terminal_it_asks_for_y_before_anything_happens(perdure, named, project):
    result = perdure("jobs", "launch", "train.yaml", "--env", "TOKEN=t")
    assert result.exit_code == 2
    assert "add -y" in result.stderr
    assert named.calls == []


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("", 0), ("n", 1)])
def test_it_asks_on_a_terminal(on_terminal, named, project, answer, code):
    named.end_status, named.printed = "SUCCEEDED", b"trained\r\n"
    terminal = on_terminal("jobs", "launch", "train.yaml", "--env", "TOKEN=t")
    terminal.read_until("Launch bert? [Y/n]")
    assert named.jobs == {}
    terminal.write(answer + "\n")
    assert terminal.end() == code
    assert bool(named.jobs) == (code == 0)
    assert ("trained" in terminal.text) == (code == 0)
    assert ("nothing was changed" in terminal.text) == (code == 1)


@pytest.mark.parametrize(
    ("status", "code"),
    [("SUCCEEDED", 0), ("FAILED", 100), ("FAILED_SETUP", 100), ("FAILED_NO_RESOURCE", 100), ("CANCELLED", 103)],
)
def test_the_exit_code_is_the_jobs(perdure, named, status, code):
    named.end_status, named.printed = status, b"what it printed\n"
    result = perdure("jobs", "launch", "-y", "echo hi")
    assert result.exit_code == code
    assert result.stdout.endswith("what it printed\n")
    assert f"Job 1 (unnamed) {status}: 8m 20s, 2 recoveries, $0.42 (saved 70%)" in result.stderr


def test_the_log_goes_on_though_its_connection_breaks(in_process, named):
    text = "".join(f"step {number}\n" for number in range(3000))
    named.end_status, named.printed, named.cut_log_at = "SUCCEEDED", text.encode(), [10_000, 10_001]
    process = in_process("jobs", "launch", "-y", "-n", "long", "echo hi")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.endswith("is submitted.\n" + text)
    assert "waiting for it" in err


def test_ctrl_c_leaves_the_job_running_and_says_how_to_come_back(in_process, named):
    named.end_status, named.printed = "RUNNING", b"step 1\n"
    process = in_process("jobs", "launch", "-y", "echo hi")
    while process.stdout.readline() != "step 1\n":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 101
    assert "job 1 goes on" in err
    assert "perdure jobs logs 1" in err
    assert "perdure jobs cancel 1" in err
    assert named.called("POST .*/cancel") == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("run: echo\nresources:\n  acelerators: V100\n", "train.yaml:3: resources.acelerators: unknown field"),
        ("run: [echo\n", "train.yaml"),
        ("workdir: nowhere\nrun: echo\n", "'nowhere' does not exist"),
        ("envs: {A: null}\nrun: echo\n", "--env A=VALUE"),
    ],
)
def test_a_wrong_yaml_is_refused_with_2_and_reaches_nobody(perdure, named, project, text, says):
    (project / "train.yaml").write_text(text)
    result = perdure("jobs", "launch", "train.yaml", "-y")
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert named.calls == []


def test_a_yaml_that_is_not_there_names_the_nearest(perdure, named, project):
    (project / "sub").mkdir()
    (project / "sub" / "train2.yml").write_text(YAML)
    result = perdure("jobs", "launch", "trian.yaml", "-y")
    assert result.exit_code == 2
    assert "trian.yaml does not exist" in result.stderr
    assert "did you mean train.yaml or sub/train2.yml?" in result.stderr
    assert named.calls == []
    result = perdure("jobs", "launch", "qqq.yaml", "-y")
    assert result.exit_code == 2
    assert "qqq.yaml does not exist" in result.stderr
    result = perdure("jobs", "launch", "sub", "-y")
    assert (result.exit_code, named.calls) == (2, [])
    assert "sub is a directory" in result.stderr


def test_what_the_controller_refuses_is_shown_as_it_says_it(perdure, named):
    result = perdure("jobs", "launch", "-y", "echo no such gpu")
    assert result.exit_code == 2
    assert "tasks[0].resources: no cloud sells this GPU\n  perdure check" in result.stderr
    assert named.jobs == {}


@pytest.mark.parametrize(
    ("words", "run"),
    [
        (["echo $HOME && ls"], "echo $HOME && ls"),
        (["--", "python", "train.py", "--lr", "3e-4"], "python train.py --lr 3e-4"),
        (["--", "python", "-c", "print('a b')"], """python -c 'print('"'"'a b'"'"')'"""),
        (["cat a.yaml"], "cat a.yaml"),
    ],
)
def test_commands(perdure, named, words, run):
    result = perdure("jobs", "launch", "-d", "-y", "-n", "cmd", *words)
    assert result.exit_code == 0, result.output
    body = submitted(named)
    assert body["tasks"][0]["run"] == run
    assert body["name"] == "cmd"


def test_yaml_from_stdin(perdure, named):
    result = perdure("jobs", "launch", "-d", "-y", "-", input="name: piped\nrun: echo")
    assert result.exit_code == 0, result.output
    assert submitted(named)["name"] == "piped"


def test_options_go_over_the_yaml(perdure, named, project):
    result = perdure(
        *("jobs", "launch", "train.yaml", "-d", "-y", "-n", "other", "--env", "TOKEN=t"),
        *("--infra", "aws/us-east-1", "--gpus", "A100:8", "--cpus", "8+", "--memory", "64", "--num-nodes", "2"),
        *("--no-use-spot", "--disk-size", "200", "--disk-tier", "high", "--labels", "team=nlp", "--priority", "10"),
        *("--job-recovery", "EAGER_NEXT_REGION", "--image-id", "docker:ubuntu:22.04"),
    )
    assert result.exit_code == 0, result.output
    body = submitted(named)
    task = body["tasks"][0]
    resources = task["resources"]
    assert body["name"] == task["name"] == "other"
    assert task["num_nodes"] == 2
    assert resources["infra"] == "aws/us-east-1"
    assert "A100" in str(resources["accelerators"])
    assert resources.get("use_spot", False) is False
    assert (resources["cpus"], resources["labels"], resources["priority"]) == ("8+", {"team": "nlp"}, 10)
    assert resources["job_recovery"]["strategy"] == "EAGER_NEXT_REGION"


def test_the_old_options_for_a_place(perdure, named):
    assert perdure("jobs", "launch", "-d", "-y", "--cloud", "aws", "--zone", "us-east-1a", "true").exit_code == 0
    assert submitted(named)["tasks"][0]["resources"]["infra"] == "aws/*/us-east-1a"
    result = perdure("jobs", "launch", "-d", "-y", "--cloud", "aws", "--infra", "gcp", "true")
    assert result.exit_code == 2
    assert "keep --infra" in result.stderr


def test_a_wrong_option_is_named_as_the_option(perdure, named):
    result = perdure("jobs", "launch", "-y", "--cpus", "many", "true")
    assert result.exit_code == 2
    assert "--cpus" in result.stderr
    result = perdure("jobs", "launch", "-y", "--labels", "team", "true")
    assert result.exit_code == 2
    assert "--labels" in result.stderr
    assert named.calls == []


def test_variables_from_files_options_and_the_environment(perdure, named, tmp_path, monkeypatch):
    (tmp_path / "a.env").write_text("# mine\nexport A='from file'\nB=file # why\nURL=x=y==\n")
    (tmp_path / "s.env").write_text('KEY="line 1\\nline 2"\n')
    monkeypatch.setenv("MINE", "my own")
    result = perdure(
        *("jobs", "launch", "-d", "-y", "--env-file", tmp_path / "a.env", "--env", "B=option", "--env", "MINE"),
        *("--secret-file", tmp_path / "s.env", "--secret", "PASS=a=b", "echo"),
    )
    assert result.exit_code == 0, result.output
    task = submitted(named)["tasks"][0]
    assert task["envs"] == {"A": "from file", "B": "option", "URL": "x=y==", "MINE": "my own"}
    assert task["secrets"] == {"KEY": "line 1\nline 2", "PASS": "a=b"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE has no value and is not set in your environment"),
        (["--env-file", "no.env"], "no.env: can not read the env file"),
        (["--secret", "=x"], "--secret: '' is no name"),
    ],
)
def test_wrong_variables(perdure, named, words, says):
    result = perdure("jobs", "launch", "-y", *words, "true")
    assert result.exit_code == 2
    assert says in result.stderr
    assert named.calls == []


def test_a_controller_of_another_version_is_mentioned(perdure, named):
    named.version = "9.9.9"
    result = perdure("jobs", "launch", "-d", "-y", "true")
    assert result.exit_code == 0
    assert "the controller is version 9.9.9" in result.stderr
