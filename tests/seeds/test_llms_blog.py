"""Training Large Language Models with SkyPilot, command by command. Its cloud is this computer."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from e2e.enter.conftest import needs_ssh
from seeds.documents import BLOG, Item
from seeds.image import Computer

pytestmark = pytest.mark.slow

SKYPILOT_YAML, WITH_DOT_ENV = BLOG.take_all(
    "resources:\n  cloud: aws\n  accelerators: A100:4 # Pick the kind and number of GPUs you want to use."
)
LAUNCH = BLOG.take("sky launch -c mycluster skypilot.yaml")
SSH = BLOG.take("ssh mycluster")
STATUS = BLOG.take("sky status")
DOWN = BLOG.take("sky down mycluster")
AUTOSTOP = BLOG.take("sky launch -d -c mycluster cluster.yaml -i 10 --down")
EXEC = BLOG.take("sky exec mycluster task.yaml -d")
DOT_ENV = BLOG.take(".env")


def on_this_computer(task: Item) -> str:
    return task.here.replace("cloud: aws", "cloud: local")


def number_of(screen: str) -> str:
    """The number of the job that a command has queued."""
    (number,) = re.findall(r"^Job submitted, ID: (\d+)$", screen, flags=re.MULTILINE)
    return str(number)


@pytest.fixture(scope="module")
def project(local: Computer) -> Computer:
    local.write("requirements.txt", "transformers\n")
    local.write("train.py", "import os\nprint('training in', os.getcwd())\n")
    local.write(DOT_ENV.text, "# keys\nWANB_TOKEN=0123456789\nLR=3e-4\n")
    return local


@pytest.fixture(scope="module")
def mycluster(project: Computer) -> Iterator[str]:
    """What the launch has printed. The cluster is up."""
    project.write("skypilot.yaml", SKYPILOT_YAML.here)
    assert "aws" in project.user.types(LAUNCH.here, exit_code=2), "this computer has no account at AWS"
    project.write("skypilot.yaml", on_this_computer(SKYPILOT_YAML))
    yield project.user.types(LAUNCH.here)
    project.user.types(DOWN.here)


def test_launch__prepares_conda_and_trains(mycluster: str) -> None:
    assert "created skypilot with python=3.10\n" in mycluster
    assert "in the environment skypilot\n" in mycluster, "`conda activate` works in setup"
    assert "Would install transformers\n" in mycluster
    assert re.search(r"^training in /\S*/sky_workdir$", mycluster, flags=re.MULTILINE)


def test_status__lists_the_cluster(project: Computer, mycluster: str) -> None:
    (line,) = [line for line in project.user.types(STATUS.here).splitlines() if line.startswith("mycluster ")]
    assert " UP " in line
    assert "A100:4" in line


@needs_ssh
def test_ssh__enters_the_cluster(project: Computer, mycluster: str) -> None:
    with project.user.at(SSH.here) as terminal:
        terminal.press("cat ~/sky_workdir/train.py; exit\n")
        assert terminal.end() == 0, terminal.screen
    assert "print('training in', os.getcwd())" in terminal.screen


def test_exec__queues_more_jobs(project: Computer, mycluster: str) -> None:
    project.write("task.yaml", "run: echo another job at $(pwd)\n")
    number = number_of(project.user.types(EXEC.here))
    assert "/sky_workdir\n" in project.user.types(f"perdure logs mycluster {number}")


def test_launch__with_autostop_and_a_file_of_variables(project: Computer, mycluster: str) -> None:
    project.write("cluster.yaml", on_this_computer(WITH_DOT_ENV))
    number = number_of(project.user.types(AUTOSTOP.here))
    log = project.user.types(f"perdure logs mycluster {number}")
    assert "wandb: logged in with a key of 10 characters\n" in log
    (line,) = [line for line in project.user.types(STATUS.here).splitlines() if line.startswith("mycluster ")]
    assert " 10m (down) " in line
