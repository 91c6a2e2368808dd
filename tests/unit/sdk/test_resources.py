"""Resources as Python objects."""

from __future__ import annotations

from perdure.sdk import Resources


def test_resources_copy__replaces_the_place() -> None:
    aws = Resources(infra="aws/us-east-1", cpus=4, use_spot=True, labels={"a": "b"})
    assert (aws.cloud, aws.region, aws.zone, aws.cpus) == ("aws", "us-east-1", None, "4")
    assert aws.copy() == aws
    assert aws.copy(cpus="8+", use_spot=False) == Resources("aws", region="us-east-1", cpus="8+", labels={"a": "b"})
    assert aws.copy(infra="gcp") == Resources("gcp", cpus=4, use_spot=True, labels={"a": "b"})
    assert aws.copy(zone="z").infra == "*/*/z"
    assert aws.copy(infra=None).cloud is None
    assert hash(aws) == hash(aws.copy())
    assert len({aws, aws.copy(), aws.copy(cpus=8)}) == 2
    assert Resources.from_yaml_config(aws.to_yaml_config()) == aws
