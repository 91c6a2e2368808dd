"""Quickstart: PyTorch, command by command."""

from __future__ import annotations

import pytest
import yaml

from seeds.documents import QUICKSTART
from seeds.image import Computer

TRAIN_YAML = QUICKSTART.take("# train.yaml")
LAUNCH = QUICKSTART.take("sky launch -c mingpt train.yaml")
TRAIN_PY = QUICKSTART.take("# train.py")
RUN_PY = QUICKSTART.take("python train.py")
CTRL_C = QUICKSTART.take("Ctrl-C")
CANCEL = QUICKSTART.take("sky cancel <cluster_name> <job_id>")
MORE_NODES = QUICKSTART.take("resources:")
MULTI_NODE_RUN = QUICKSTART.take("run: |")


def test_quickstart__runs_on_the_command_line(local: Computer) -> None:
    local.write("train.yaml", TRAIN_YAML.here)
    screen = local.user.types(LAUNCH.here)
    assert "Would install torch\n" in screen
    assert "Starting minGPT-ddp training\n" in screen
    assert "[INFO] 4 ranks on 127.0.0.1, their sum is 6\n" in screen
    local.user.types("perdure down mingpt")


def test_quickstart__runs_as_a_program_is_left_with_ctrl_c_and_cancelled(local: Computer) -> None:
    local.write("train.py", TRAIN_PY.here)
    local.set_epochs(100_000)
    with local.user.at(RUN_PY.here) as terminal:
        terminal.wait_for("their sum is 6\nepoch 0\n")
        assert CTRL_C.text == "Ctrl-C"
        terminal.press("\x03")
        terminal.end()
    local.set_epochs(1)
    assert "mingpt" in local.user.types("perdure status")
    assert " RUNNING " in local.user.types("perdure queue mingpt")
    local.user.types(CANCEL.here.replace("<cluster_name>", "mingpt").replace("<job_id>", "1"))
    assert " CANCELLED " in local.user.types("perdure queue mingpt")
    local.user.types("perdure down mingpt")


@pytest.mark.slow
def test_quickstart__scales_up_to_two_nodes(local: Computer) -> None:
    task = yaml.safe_load(TRAIN_YAML.here) | yaml.safe_load(MORE_NODES.here) | yaml.safe_load(MULTI_NODE_RUN.here)
    local.write("train.yaml", yaml.safe_dump(task))
    screen = local.user.types(LAUNCH.here)
    assert "Starting distributed training, head node: 127.77." in screen
    assert "[INFO] 8 ranks on 127.77." in screen
    assert ", their sum is 28\n" in screen
    local.user.types("perdure down mingpt")
