"""Who may look at a cloud account reads the user data of machines, and gets nothing of the jobs on them."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from perdure.sdk.connection.discovery import running
from support.worlds.jobs_on_clouds import JobsOnClouds

pytestmark = pytest.mark.slow

WORK = """
trap 'exit 1' TERM
echo running
if [ "$PERDURE_GENERATION" = 1 ]; then while :; do sleep 0.1; done; fi
"""


def test_user_data__give_no_access_and_their_second_use_replaces_the_machine(
    on_ec2: JobsOnClouds, tmp_path: Path
) -> None:
    job = on_ec2.launch("watched", WORK, secrets={"TOKEN": "hunter2"})
    on_ec2.until_printed(job, "running")
    (user_data,) = tmp_path.rglob(".user-data")
    found = re.search(r'"PERDURE_TOKEN": "([^"]+)"', user_data.read_text())
    assert found is not None

    def call(path: str, body: bytes | None = None) -> int:
        endpoint = running(on_ec2.controller.home)
        assert endpoint is not None
        headers = {"Authorization": f"Bearer {found[1]}", "Perdure-Rank": "0", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{endpoint.url}/agent/v1/{path}", body, headers)
        try:
            with urllib.request.urlopen(request) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert call("spec") == 401, "the spec has the secrets"
    assert on_ec2.controller.job(job)["status"] == "RUNNING"
    assert call("token", json.dumps({"nonce": "0" * 64}).encode()) == 403
    shown = on_ec2.until(job, "SUCCEEDED")
    alarm = next(event for event in shown["timeline"] if event["kind"] == "node.boot_token_reused")
    assert "Change the secrets" in alarm["message"]
    assert len(shown["attempts"]) == 2
    assert any("agent.boot_token_reused" in line for line in on_ec2.controller.errors())
