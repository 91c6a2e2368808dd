"""Both versions of control groups, as the kernel writes their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.agent.lifecycle.outcome import outcome_of
from perdure.agent.workload.memory_limit import MemoryLimit
from perdure.agent.workload.stage import StageResult

V2 = {
    "memory.events": "low 0\nhigh 0\nmax 41\noom 2\noom_kill 3\noom_group_kill 0\n",
    "memory.max": f"{2 << 30}\n",
    "memory.peak": f"{2 << 30}\n",
}
V1 = {
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    "memory/memory.limit_in_bytes": f"{2 << 30}\n",
    "memory/memory.max_usage_in_bytes": f"{2 << 30}\n",
}


def write(root: Path, files: dict[str, str]) -> MemoryLimit:
    for name, content in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(content)
    return MemoryLimit(root)


@pytest.mark.parametrize("files", [V1, V2], ids=["v1", "v2"])
def test_limit__is_read_with_its_kills(tmp_path: Path, files: dict[str, str]) -> None:
    limit = write(tmp_path, files)
    assert limit.kills() == 3
    words = "it ran out of memory (its limit is 2.00 GiB, its peak was 2.00 GiB): request more `memory`"
    assert limit.explanation() == words


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"memory.max": "max\n"},
        {"memory/memory.oom_control": "", "memory/memory.limit_in_bytes": "9223372036854771712"},
    ],
    ids=["none", "no limit", "no limit, v1"],
)
def test_machine_without_a_limit__has_no_kills(tmp_path: Path, files: dict[str, str]) -> None:
    limit = write(tmp_path, files)
    assert limit.kills() == 0
    assert limit.explanation() == "it ran out of memory (OOM): request more `memory`"


def test_outcome__of_a_stage_that_was_killed_for_memory_says_so(tmp_path: Path) -> None:
    killed = StageResult(137, stopped=False)
    assert outcome_of("run", killed).message == "run exited with code 137 (killed by SIGKILL)"
    message = outcome_of("run", killed, write(tmp_path, V2)).message
    assert message.startswith(
        "run exited with code 137 (killed by SIGKILL); it ran out of memory (its limit is 2.00 GiB"
    )
