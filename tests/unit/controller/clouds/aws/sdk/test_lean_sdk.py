"""Clients of botocore with reduced service descriptions."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore import xform_name

from perdure.controller.clouds.aws.sdk import lean_sdk

SOURCES = Path(lean_sdk.__file__).parents[1]


def described(service: str, *, cut: bool) -> dict[str, Any]:
    session = botocore.session.Session()
    if cut:
        session.register_component("data_loader", lean_sdk.loader(None))
    return dict(session.get_component("data_loader").load_service_model(service, "service-2"))


@pytest.mark.parametrize("service", sorted(lean_sdk.OPERATIONS))
def test_operations__are_exactly_those_that_are_called(service: str) -> None:
    """In the code, calls are attributes, and paginators are requested by the same names."""
    by_name = {xform_name(operation): operation for operation in described(service, cut=False)["operations"]}
    names = {
        node.attr if isinstance(node, ast.Attribute) else node.value
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    }
    assert {by_name[name] for name in names & by_name.keys()} == lean_sdk.OPERATIONS[service]


@pytest.mark.parametrize("service", sorted(lean_sdk.OPERATIONS))
def test_loader__keeps_descriptions_as_they_are(service: str) -> None:
    whole, lean = described(service, cut=False), described(service, cut=True)
    assert 0 < len(lean["shapes"]) < len(whole["shapes"]) / 2
    for part in ("operations", "shapes"):
        assert lean[part] == {name: undocumented(whole[part][name]) for name in lean[part]}
    assert lean["metadata"] == whole["metadata"]


def test_client__has_the_operations_in_use() -> None:
    session = botocore.session.Session()
    session.register_component("data_loader", lean_sdk.loader(None))
    client = session.create_client("ec2", "us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    assert set(client.meta.method_to_api_mapping.values()) == lean_sdk.OPERATIONS["ec2"]
    assert client.can_paginate("describe_instances")


@pytest.mark.parametrize("region", ["us-east-1", "ap-northeast-3", "cn-north-1", "us-gov-west-1"])
def test_client__calls_the_same_endpoints(region: str) -> None:
    called = ("ec2", "fis", "iam", "pricing", "service-quotas", "sqs", "ssm", "sts")
    whole, cut = botocore.session.Session(), botocore.session.Session()
    cut.register_component("data_loader", lean_sdk.loader(None))
    for service in called:
        one, other = (
            session.create_client(service, region, aws_access_key_id="a", aws_secret_access_key="b")
            for session in (whole, cut)
        )
        assert one.meta.endpoint_url == other.meta.endpoint_url
        assert one.meta.region_name == other.meta.region_name


def test_loader__keeps_services_for_credentials_complete() -> None:
    assert described("sts", cut=True) == undocumented(described("sts", cut=False))


def test_loader__finds_custom_descriptions(tmp_path: Path) -> None:
    folder = tmp_path / "mine/2026-01-01"
    folder.mkdir(parents=True)
    (folder / "service-2.json").write_text('{"metadata": {}, "operations": {"Do": {"name": "Do"}}, "shapes": {}}')
    loader = lean_sdk.loader(str(tmp_path))
    assert loader.load_service_model("mine", "service-2")["operations"] == {"Do": {"name": "Do"}}


def undocumented(value: Any) -> Any:
    """Without the texts called `documentation`."""
    match value:
        case dict():
            texts = {name for name, one in value.items() if name == "documentation" and isinstance(one, str)}
            return {name: undocumented(one) for name, one in value.items() if name not in texts}
        case list():
            return [undocumented(one) for one in value]
    return value
