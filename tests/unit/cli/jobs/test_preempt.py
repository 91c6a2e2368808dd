"""`perdure jobs preempt`."""

from __future__ import annotations

import pytest

from unit.cli.commands import RunPerdure
from unit.sdk.contract_server import Controller


@pytest.mark.parametrize(
    ("words", "notice_s", "message"),
    [
        ([], 30.0, "will be preempted in 30 s; its notice was sent"),
        (["--notice", "2.5"], 2.5, "will be preempted in 2.5 s"),
        (["--kill"], None, "is being preempted without notice"),
    ],
)
def test_preempt__with_and_without_notice(
    perdure: RunPerdure, server: Controller, preempted_job: int, words: list[str], notice_s: float | None, message: str
) -> None:
    result = perdure("jobs", "preempt", preempted_job, "--node", "1", *words)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Node 1 of job 1 (i-1 in us-east-1a) ")
    assert message in result.stdout
    assert server.called("POST .*preempt")[0][2] == {"node": 1, "notice_s": notice_s}


def test_preempt__rejects_a_job_without_a_machine(perdure: RunPerdure, server: Controller) -> None:
    server.add("PENDING")
    result = perdure("jobs", "preempt", 1)
    assert result.exit_code == 1
    assert result.stderr == "Error: job 1 has no machine: it is PENDING\n  wait until it runs\n"
    assert perdure("jobs", "preempt", 1, "--kill", "--notice", 3).exit_code == 2
