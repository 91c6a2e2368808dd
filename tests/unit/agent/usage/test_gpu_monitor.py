"""GPUs, from a program that prints what `nvidia-smi` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.agent.usage.gpu_monitor import GpuMonitor, parse_line
from support.helpers.timing import wait_until

SCRIPT = """#!/bin/sh
echo "$@" > {folder}/arguments
echo "0, 90, 1024, 81559, 310.52, 61"
echo "1, 0, 0, 81559, 70.00, [N/A]"
echo "No devices were found"
echo "0, 70, 1024, 81559, 290.48, 63"
"""


def test_samples__become_means_by_gpu(tmp_path: Path) -> None:
    program, lines = tmp_path / "nvidia-smi", list[str]()
    program.write_text(SCRIPT.format(folder=tmp_path))
    program.chmod(0o755)
    monitor = GpuMonitor(lines.append, str(program))
    monitor.start()
    wait_until(lambda: lines, "the end of the program", 10)
    first, second = monitor.take_means()
    assert first == pytest.approx(
        {
            "utilization": 0.8,
            "memory_used": 1024 * 2**20,
            "memory_total": 81559 * 2**20,
            "power_w": 300.5,
            "temperature_c": 62.0,
        }
    )
    assert (second["utilization"], second["temperature_c"]) == (0.0, 0.0)
    assert monitor.take_means() == [], "each sample counts once"
    assert "ended with code 0" in lines[0]
    assert "--format=csv,noheader,nounits -l 15" in (tmp_path / "arguments").read_text()


def test_program_that_cannot_start__is_logged(tmp_path: Path) -> None:
    lines: list[str] = []
    GpuMonitor(lines.append, str(tmp_path / "missing")).start()
    wait_until(lambda: lines, "the message", 10)
    assert "the use of GPUs is not reported" in lines[0]


@pytest.mark.parametrize("line", ["", "0, 1", "x, 1, 2, 3, 4, 5", "0, 1, 2, 3, 4, 5, 6"])
def test_other_lines__are_no_samples(line: str) -> None:
    assert parse_line(line) is None


def test_absurd_values__are_bounded() -> None:
    sample = parse_line("0, 900, nan, 1e300, -5, inf")
    assert sample == {
        "index": 0.0, "utilization": 1.0, "memory_used": 0.0, "memory_total": 0.0, "power_w": 0.0, "temperature_c": 0.0,
    }  # fmt: skip
