"""`perdure completion`."""

from __future__ import annotations

import os
import subprocess
import sys

from unit.cli.commands import RunPerdure, StartPerdure


def test_completion__prints_a_script_that_works(perdure: RunPerdure, in_process: StartPerdure) -> None:
    for shell in ("bash", "zsh", "fish"):
        result = perdure("completion", shell)
        assert result.exit_code == 0
        assert "_PERDURE_COMPLETE" in result.stdout
        assert result.stdout.startswith("# To enable it in every shell:")
    script = "from perdure.cli.main import main; main()"
    request = {"_PERDURE_COMPLETE": "bash_complete", "COMP_WORDS": "perdure jobs la", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **request}, capture_output=True, text=True, check=False
    )
    assert done.stdout == "plain,launch\n"
