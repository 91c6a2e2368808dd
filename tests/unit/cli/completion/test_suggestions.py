"""What tab completion suggests for values."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from unit.sdk.contract_server import Controller


def suggestions(words: str, **environ: str) -> list[str]:
    """What is suggested for the last of the words, each with its kind: `plain,RUNNING`."""
    request = {"_PERDURE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    script = "from perdure.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **request, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_completion__suggests_values(server: Controller) -> None:
    server.add("SUCCEEDED", name="bert")
    server.add("RUNNING", "PENDING", name="best")
    assert suggestions("perdure jobs launch tr") == ["file,tr"]
    assert suggestions("perdure jobs launch --workdir s") == ["dir,s"]
    assert suggestions("perdure jobs launch --env-file x") == ["file,x"]
    assert suggestions("perdure jobs launch --job-recovery ea") == ["plain,EAGER_NEXT_REGION"]
    assert suggestions("perdure jobs launch --infra gc") == ["plain,gcp"]
    assert suggestions("perdure jobs launch --ignore vol") == ["plain,volumes", "plain,volume_mounts"]
    assert suggestions("perdure jobs show ") == ["plain,2", "plain,1"]
    assert suggestions("perdure jobs cancel ") == ["plain,2"]
    assert suggestions("perdure jobs logs -n be") == ["plain,best", "plain,bert"]
    assert suggestions("perdure jobs queue -s RUNNING,succ") == ["plain,RUNNING,SUCCEEDED"]


def test_completion__suggests_nothing_without_a_controller(server: Controller, tmp_path: Path) -> None:
    assert suggestions("perdure jobs show ", PERDURE_ENDPOINT="http://127.0.0.1:1") == []
    assert suggestions("perdure jobs show ", PERDURE_ENDPOINT="", PERDURE_HOME=str(tmp_path / "none")) == []
    assert not (tmp_path / "none").exists(), "no controller was started"
    assert suggestions("perdure jobs show ", PERDURE_TOKEN="wrong") == []
