"""A machine that boots but does not reach the controller leaves its console in the log of its job."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.worlds.jobs_on_clouds import running_jobs_on_clouds

pytestmark = pytest.mark.slow

NOBODY = "https://127.0.0.1:9"
CONFIG = f"""
listen: {{advertise: "{NOBODY}"}}
timeouts: {{boot_timeout_s: 10}}
"""


def test_console__is_in_the_log_of_the_job(tmp_path: Path) -> None:
    with running_jobs_on_clouds(tmp_path, "aws", config=CONFIG) as one:
        job = one.launch("lost", "echo never printed")
        one.until_printed(job, "the end of the console of i-")
        log = one.controller.log(job)
        (ec2,) = one.fakes.values()
        first = ec2.purchases()[0]
        assert f"[perdure: {first.id} never called {NOBODY}. Its console:]" in log
        assert "Connection refused" in log, "what the machine's first program has met"
        one.controller.client.cancel(ids=[job])
        one.controller.until(lambda: not one.living(), "the end of every machine")
