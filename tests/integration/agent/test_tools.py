"""What a machine offers before `setup`: python, pip, uv, conda and sudo, as people's YAMLs use them."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.agent.controller import Controller
from integration.agent.node import Node
from integration.agent.test_workload import finish
from perdure.controller.clouds.bootstrap.artifacts import build_artifacts
from perdure.controller.clouds.bootstrap.programs import UV
from support.helpers.package_index import PackageIndex, package_index

needs_uv = pytest.mark.skipif(not list(UV.candidates()), reason="needs uv, which the extra [controller] brings")
GUARD = 'case $- in *i*) ;; *) return ;; esac\n[ -z "$PS1" ] && return\n'  # of Ubuntu's users, and of its root


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    with package_index(tmp_path / "index") as index:
        yield index


@pytest.fixture
def with_uv(controller: Controller, node: Node, index: PackageIndex, tmp_path: Path) -> PackageIndex:
    """The node finds uv, and the packages of `index`. Its Python is the controller's, as on the local cloud."""
    artifacts = tmp_path / "artifacts"
    controller.spec["artifacts"] = {UV.artifact: build_artifacts(artifacts)[UV.artifact].digest}
    controller.spec["env"] = index.environ
    node.env |= {"PERDURE_ARTIFACTS_DIR": str(artifacts), "PERDURE_OWN_ENV": "1"}
    return index


def output_of(controller: Controller, node: Node, script: str, **spec: Any) -> str:
    """Run the script, which succeeds; returns what it printed."""
    report = finish(controller, node, script, **spec)
    controller.until(lambda: len(controller.log) >= report.get("logs", {}).get("size", 0))
    text = controller.log.decode()
    assert report["exit_code"] == 0, text
    return text


@pytest.mark.slow
@needs_uv
def test_lines_of_the_guides__run_as_printed(controller: Controller, node: Node, with_uv: PackageIndex) -> None:
    """BERT's `pip install`, minGPT's `uv pip install --system`, and the conda of the blog about large models."""
    for name in ("by-pip", "by-uv", "by-python", "in-conda"):
        with_uv.add(name)
    setup = """
set -e
pip install -q by-pip
echo by-uv > requirements.txt
uv pip install -q --system -r requirements.txt
python3 -m pip install -q by-python
python -c 'import by_pip, by_uv, by_python, sys; print("machine", sys.prefix)'
conda create -n x python=3.11 -y && conda activate x
pip install -q in-conda
python -c 'import in_conda, sys; print("conda", sys.prefix, sys.version_info[:2])'
"""
    run = "python -c 'import in_conda, sys; print(\"run\", sys.prefix)'"
    text = output_of(controller, node, run, setup=setup)
    assert f"machine {node.home}/perdure-env\n" in text, text
    assert f"conda {node.home}/.conda/envs/x (3, 11)\n" in text, text
    assert f"run {node.home}/.conda/envs/x\n" in text, "`run` begins in the environment in which `setup` ended"


@pytest.mark.slow
@needs_uv
def test_python__of_the_image_is_used_until_something_is_installed(
    controller: Controller, node: Node, with_uv: PackageIndex
) -> None:
    """Nothing is made or fetched for a job that installs nothing. Later, the image's packages are still there."""
    with_uv.add("numpy", "99.0")  # the image has another one
    run = """
python -c 'import sys, yaml; print("before", sys.prefix)'
ls -d ~/perdure-env "$PERDURE_TOOLS/uv" 2>&1 | grep -c 'No such file'
pip install -q numpy==99.0
python -c 'import sys, yaml, numpy; print("after", sys.prefix, numpy.VERSION)'
"""
    text = output_of(controller, node, run)
    assert f"before {sys.prefix}\n2\n" in text
    assert f"after {node.home}/perdure-env 99.0\n" in text
    numpy = Path(sys.prefix, "lib", f"python3.{sys.version_info[1]}", "site-packages", "numpy")
    assert numpy.is_dir(), "the controller's own packages are not touched"


@needs_uv
def test_runtime_python__is_the_python_of_the_task(controller: Controller, node: Node, with_uv: PackageIndex) -> None:
    version = f"3.{sys.version_info[1]}"
    run = "python -c 'import sys; print(sys.prefix, sys.version_info[:2])'; type yaml; python -c 'import yaml'"
    report = finish(controller, node, run, runtime={"python": version})
    controller.until_log(b"No module named 'yaml'")
    assert f"{node.home}/perdure-env-{version} (3, {sys.version_info[1]})\n" in controller.log.decode()
    assert report["exit_code"] == 1, "a Python of the task's own sees nothing of the image's"


@needs_uv
def test_runtime_python__that_cannot_be_had_ends_the_stage(
    controller: Controller, node: Node, with_uv: PackageIndex
) -> None:
    """Nothing answers where uv would fetch it from."""
    controller.spec["env"] = {
        **with_uv.environ,
        "UV_PYTHON_INSTALL_MIRROR": "http://127.0.0.1:1",
        "UV_HTTP_RETRIES": "0",
    }
    report = finish(controller, node, "true", setup="python -c 'print(1)'", runtime={"python": "3.8"})
    assert (report["exit_code"], report["failed_stage"]) == (127, "setup")
    controller.until_log(b"making the Python environment")


@needs_uv
def test_project_environment__is_where_uv_installs(controller: Controller, node: Node, with_uv: PackageIndex) -> None:
    with_uv.add("of-project")
    run = "set -e; uv venv -q; uv pip install -q of-project; .venv/bin/python -c 'import of_project; print(\"there\")'"
    assert "there\n" in output_of(controller, node, run)


@needs_uv
def test_conda__refuses_what_it_cannot_do(controller: Controller, node: Node, with_uv: PackageIndex) -> None:
    run = "conda create -n x python=3.11 cudatoolkit=11.8 -c nvidia -y; echo code $?; conda env list; conda activate x"
    report = finish(controller, node, run)
    controller.until_log(b"there is no conda environment x")
    text = controller.log.decode()
    assert "conda create cudatoolkit=11.8: this machine's conda makes environments of Python packages" in text
    assert "code 1\n" in text
    assert report["exit_code"] == 1


def test_real_conda__takes_the_place_of_ours(controller: Controller, node: Node) -> None:
    run = """
mkdir -p ~/miniconda3/bin ~/miniconda3/etc/profile.d
printf '#!/bin/sh\\necho "program $*"\\n' > ~/miniconda3/bin/conda
chmod +x ~/miniconda3/bin/conda
echo 'conda() { echo "function $*"; }' > ~/miniconda3/etc/profile.d/conda.sh
export PATH=~/miniconda3/bin:$PATH
conda activate x
bash -c 'conda activate y'
"""
    text = output_of(controller, node, run)
    assert "function activate x\n" in text
    assert "function activate y\n" in text


def test_conda__of_the_image_activates_what_it_makes(controller: Controller, node: Node, tmp_path: Path) -> None:
    """Also where the tools come first on PATH: its environments are not where ours would be."""
    (tmp_path / "conda").write_text(
        '#!/bin/sh\n[ "$1" = shell.bash ] && echo \'conda() { echo "of the image: $*"; }\'\n'
    )
    (tmp_path / "conda").chmod(0o755)
    node.env |= {"PERDURE_OWN_ENV": "1", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    text = output_of(controller, node, "conda activate x\nbash -c 'conda create -n y'")
    assert text.startswith("of the image: activate x\nof the image: create -n y\n")


def test_tools__cede_to_the_environment_of_an_image(controller: Controller, node: Node, tmp_path: Path) -> None:
    """An image with python and pip side by side, such as one with a conda, keeps both. What it lacks, it gets."""
    image = tmp_path / "image"
    image.mkdir()
    for name in ("python", "pip"):
        (image / name).write_text(f"#!/bin/sh\necho the image\\'s {name}\n")
        (image / name).chmod(0o755)
    node.env["PATH"] = f"{image}:/usr/bin:/bin"
    text = output_of(controller, node, 'python; pip; type -P uv; echo "${VIRTUAL_ENV-none}"')
    assert text.startswith(f"the image's python\nthe image's pip\n{node.state_dir}/tools/bin/uv\nnone\n")


def test_uv__that_the_controller_lacks_is_missed_in_words(controller: Controller, node: Node) -> None:
    node.env |= {"PERDURE_OWN_ENV": "1", "PATH": "/usr/bin:/bin"}
    report = finish(controller, node, "uv --version")
    controller.until_log(f"the controller has none for {platform.machine()}".encode())
    assert report["exit_code"] == 127


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_sudo__of_root_keeps_the_tools(controller: Controller, node: Node) -> None:
    node.env |= {"PERDURE_OWN_ENV": "1", "PATH": "/usr/bin:/bin"}
    run = "sudo -E true && sudo -n NAME=value sh -c 'echo \"$NAME $(command -v pip)\"'"
    assert f"value {node.state_dir}/tools/bin/pip\n" in output_of(controller, node, run)


def test_login__reads_what_only_interactive_shells_read(controller: Controller, node: Node) -> None:
    """Most distributions' ~/.bashrc returns at once otherwise, and what an installer appended to it would be lost."""
    (node.home / ".bashrc").write_text(GUARD + "export FROM_RC=yes\n")
    setup = "echo 'export FROM_SETUP=too' >> ~/.bashrc"
    run = 'echo "$FROM_RC $FROM_SETUP ${PS1-unset}"; kill -TERM $$'
    report = finish(controller, node, run, setup=setup)
    controller.until_log(b"yes too unset\n")
    assert report["exit_code"] == 143, "an interactive shell would ignore SIGTERM"


@pytest.mark.parametrize("name", ["env", "python", "name", "folder", "base", "tools"])
def test_variables__of_the_user_are_left_alone(controller: Controller, node: Node, name: str) -> None:
    """The tools are shell scripts, and a variable that they set would reach the user's program."""
    node.env |= {"PERDURE_OWN_ENV": "1"}
    run = f'python -c \'import os; print(os.environ["{name}"])\'; echo "${name}"'
    text = output_of(controller, node, run, env={name: "mine"})
    assert text == "mine\nmine\n"
