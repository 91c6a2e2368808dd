"""`perdure check`."""

from __future__ import annotations

import json

from unit.cli.commands import RunPerdure
from unit.sdk.contract_server import Controller


def test_check__lists_clouds(perdure: RunPerdure, server: Controller) -> None:
    server.clouds = [
        {"name": "local", "usable": True, "why": None, "regions": ["local"], "notes": ["3 zones on this machine"]},
        {"name": "aws", "usable": False, "why": "no credentials: run `aws configure`", "regions": [], "notes": []},
    ]
    result = perdure("check")
    assert result.exit_code == 0
    assert result.stdout == (
        "local: usable\n  regions: local\n  3 zones on this machine\n"
        "aws: not usable\n  no credentials: run `aws configure`\n"
    )
    assert perdure("check", "AWS").exit_code == 1
    assert perdure("check", "local").exit_code == 0
    assert perdure("check", "azur").exit_code == 2


def test_check__lists_findings_and_each_fix_once(perdure: RunPerdure, server: Controller) -> None:
    server.clouds = [{"name": "aws", "usable": True, "why": None, "regions": ["us-east-1"], "notes": []}]
    identity = {"subject": "credentials", "severity": "ok", "text": "somebody", "fix": None}
    warnings = [
        {"subject": "quotas", "severity": "warning", "text": f"{what}: nothing left", "fix": "ask for more"}
        for what in ("spot vCPUs", "on-demand vCPUs")
    ]
    server.findings = {"aws": [identity, *warnings]}
    result = perdure("check", "aws")
    assert result.exit_code == 0
    assert result.stdout == (
        "aws: usable\n  regions: us-east-1\n  warning quotas: spot vCPUs: nothing left\n"
        "  warning quotas: on-demand vCPUs: nothing left\n  fix: ask for more\n"
    )
    assert "ok credentials: somebody" in perdure("check", "-v").stdout
    fatal = {"subject": "permissions", "severity": "error", "text": "ec2:RunInstances is missing", "fix": "allow it"}
    server.findings = {"aws": [identity, fatal]}
    result = perdure("check", "aws", "-o", "json")
    assert result.exit_code == 1
    (cloud,) = json.loads(result.stdout)
    assert (cloud["usable"], cloud["findings"]) == (False, [identity, fatal])


def test_check__warns_of_a_configuration_that_was_not_read(perdure: RunPerdure, server: Controller) -> None:
    server.clouds = [{"name": "local", "usable": True, "why": None, "regions": ["local"], "notes": []}]
    assert "config.yaml" not in perdure("check").output
    server.config_changed = True
    result = perdure("check")
    assert result.exit_code == 0
    assert "config.yaml was changed after the controller started" in result.stderr
    assert "perdure controller stop" in result.stderr


def test_check__of_a_cloud_that_does_not_answer_fails(perdure: RunPerdure, server: Controller) -> None:
    server.clouds = [{"name": "aws", "usable": True, "why": None, "regions": ["us-east-1"], "notes": []}]
    unknown = {"severity": "unknown", "text": "could not be checked: Could not connect", "fix": None}
    server.findings = {"aws": [{"subject": "credentials", **unknown}]}
    result = perdure("check", "aws")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (1, "aws: not usable")
    assert json.loads(perdure("check", "aws", "-o", "json").stdout)[0]["usable"] is False
    server.findings = {"aws": [{"subject": "quotas", **unknown}]}
    assert perdure("check", "aws").exit_code == 0, "launches are possible"
