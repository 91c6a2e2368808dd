"""A minute of coverage-guided fuzzing of the YAML reader. `make fuzz` continues until it is stopped."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.api

HERE = Path(__file__).parent
SECONDS = 60


@pytest.mark.timeout(SECONDS * 5)
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris has no wheel for this Python or machine")
def test_yaml_reader__survives_a_minute_of_fuzzing(tmp_path: Path) -> None:
    found = tmp_path / "corpus"
    found.mkdir()
    limits = [
        f"-max_total_time={SECONDS}",
        "-max_len=4096",
        "-timeout=20",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
    ]
    options = [
        *limits,
        f"-artifact_prefix={tmp_path}/",
        f"-dict={HERE / 'yaml.dict'}",
        str(found),
        str(HERE / "corpus"),
    ]
    done = subprocess.run(
        [sys.executable, str(HERE / "yaml_reader.py"), *options],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    crashes = [path.read_bytes() for path in tmp_path.glob("*-*")]
    assert done.returncode == 0, f"{crashes}\n{done.stderr[-4000:]}"
    runs = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    assert runs, done.stderr[-2000:]
    assert int(runs[1]) > 500, "it did fuzz"
