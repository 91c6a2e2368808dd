"""A client of EC2's has what is called of it, and little else."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore import xform_name

from perdure.controller.clouds.aws import models

SOURCES = Path(models.__file__).parent


def described(service: str, *, cut: bool) -> dict[str, Any]:
    session = botocore.session.Session()
    if cut:
        session.register_component("data_loader", models.loader(None))
    return dict(session.get_component("data_loader").load_service_model(service, "service-2"))


@pytest.mark.parametrize("service", sorted(models.OPERATIONS))
def test_exactly_what_is_called_is_kept(service: str) -> None:
    """Calls are attributes, and paginators are asked for by the same names."""
    by_name = {xform_name(operation): operation for operation in described(service, cut=False)["operations"]}
    said = {
        node.attr if isinstance(node, ast.Attribute) else node.value
        for path in SOURCES.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    }
    assert {by_name[name] for name in said & by_name.keys()} == models.OPERATIONS[service]


@pytest.mark.parametrize("service", sorted(models.OPERATIONS))
def test_what_is_kept_is_as_aws_describes_it(service: str) -> None:
    whole, kept = described(service, cut=False), described(service, cut=True)
    assert 0 < len(kept["shapes"]) < len(whole["shapes"]) / 2
    for part in ("operations", "shapes"):
        assert kept[part] == {name: undocumented(whole[part][name]) for name in kept[part]}
    assert kept["metadata"] == whole["metadata"]


def test_a_client_has_those_methods() -> None:
    session = botocore.session.Session()
    session.register_component("data_loader", models.loader(None))
    client = session.create_client("ec2", "us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    assert set(client.meta.method_to_api_mapping.values()) == models.OPERATIONS["ec2"]
    assert client.can_paginate("describe_instances")


@pytest.mark.parametrize("region", ["us-east-1", "ap-northeast-3", "cn-north-1", "us-gov-west-1"])
def test_clients_call_where_they_would(region: str) -> None:
    called = ("ec2", "fis", "iam", "pricing", "service-quotas", "sqs", "ssm", "sts")
    whole, cut = botocore.session.Session(), botocore.session.Session()
    cut.register_component("data_loader", models.loader(None))
    for service in called:
        one, other = (
            session.create_client(service, region, aws_access_key_id="a", aws_secret_access_key="b")
            for session in (whole, cut)
        )
        assert one.meta.endpoint_url == other.meta.endpoint_url
        assert one.meta.region_name == other.meta.region_name


def test_what_finds_credentials_is_whole() -> None:
    assert described("sts", cut=True) == undocumented(described("sts", cut=False))


def test_descriptions_of_the_users_own_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "mine/2026-01-01"
    folder.mkdir(parents=True)
    (folder / "service-2.json").write_text('{"metadata": {}, "operations": {"Do": {"name": "Do"}}, "shapes": {}}')
    loader = models.loader(str(tmp_path))
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
