"""The resources of a controller host in EC2. botocore's model checks requests; moto stores resources."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.base.protocol import (
    Disk,
    EventuallyConsistent,
    Hosting,
    HostRequirements,
    Instance,
    LaunchRequest,
)
from perdure.controller.hosting import bundle, config
from perdure.recovery.market.view import Market
from support.fakes.ec2 import FakeEc2

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
# Not called, but required: for tags of new resources, and for the host's role.
IMPLIED = {"ec2:CreateTags", "iam:PassRole", "iam:TagRole"}
USER_DATA_LIMIT = 16 * 1024  # docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-add-user-data.html
CERTIFICATE = "x" * 1000


@pytest.fixture
def launch_host(cloud: AwsCloud, request_of: Callable[..., LaunchRequest]) -> Callable[..., tuple[Instance, Disk]]:
    def make(token: str = "t1", callers: str = "192.0.2.0/24", on: AwsCloud = cloud) -> tuple[Instance, Disk]:
        disk = on.state_disk("hosting-1", region="us-east-1", zone="us-east-1a", gib=20)
        program = bundle.render_installer({"secret": "s", "certificate": CERTIFICATE, "key": CERTIFICATE})
        needs = HostRequirements(program, "/var/lib/perdure", disk, 8443, callers, "perdure-controller")
        return on.launch_host(request_of(token, market=Market.ON_DEMAND, disk_gib=20), needs), disk

    return make


def client(ec2: FakeEc2, service: str = "ec2") -> Any:
    return boto3.client(service, region_name="us-east-1", endpoint_url=ec2.url)


def test_disk__is_created_once_encrypted_and_found_in_its_zone(cloud: AwsCloud, ec2: FakeEc2) -> None:
    assert isinstance(cloud, Hosting)
    made = cloud.state_disk("hosting-1", region="us-east-1", zone="us-east-1b", gib=20)
    assert cloud.state_disk("hosting-1", region="us-east-1", zone="us-east-1a", gib=50) == made
    (volume,) = client(ec2).describe_volumes()["Volumes"]
    assert (volume["AvailabilityZone"], volume["Size"], volume["Encrypted"]) == ("us-east-1b", 20, True)


def test_host__has_a_role_an_open_port_and_its_disk(
    launch_host: Callable[..., tuple[Instance, Disk]], cloud: AwsCloud, ec2: FakeEc2
) -> None:
    instance, disk = launch_host()
    assert launch_host()[0].id == instance.id, "the same token buys once"
    (now,) = cloud.describe("us-east-1", [instance.id])
    address = cloud.attach_disk(now, disk)
    assert cloud.attach_disk(now, disk) == address is not None
    (reported,) = client(ec2).describe_instances(InstanceIds=[instance.id])["Reservations"][0]["Instances"]
    assert address == reported["PublicIpAddress"]
    assert reported["IamInstanceProfile"]["Arn"].endswith(":instance-profile/perdure-controller")
    assert "InstanceLifecycle" not in reported
    (group,) = client(ec2).describe_security_groups(GroupIds=[reported["SecurityGroups"][0]["GroupId"]])[
        "SecurityGroups"
    ]
    (rule,) = group["IpPermissions"]
    assert (rule["FromPort"], rule["ToPort"], rule["IpRanges"]) == (8443, 8443, [{"CidrIp": "192.0.2.0/24"}])
    (attached,) = client(ec2).describe_volumes(VolumeIds=[disk.id])["Volumes"][0]["Attachments"]
    assert attached["InstanceId"] == instance.id

    other, _ = launch_host("t2", callers="198.51.100.7/32")
    (group,) = client(ec2).describe_security_groups(GroupIds=[group["GroupId"]])["SecurityGroups"]
    assert [rule["IpRanges"] for rule in group["IpPermissions"]] == [[{"CidrIp": "198.51.100.7/32"}]]
    (now,) = cloud.describe("us-east-1", [other.id])
    assert cloud.attach_disk(now, disk) is None, "another machine holds the disk still"
    client(ec2).detach_volume(VolumeId=disk.id, InstanceId=instance.id)
    assert cloud.attach_disk(now, disk) == address, "nodes call the same address"
    cloud.terminate("us-east-1", [instance.id, other.id])
    cloud.release("ctl", "us-east-1")
    assert client(ec2).describe_addresses()["Addresses"] == []
    assert client(ec2).describe_volumes()["Volumes"], "the disk stays"


def actions(policy: str) -> set[str]:
    actions = [statement["Action"] for statement in json.loads((ROOT / "deploy/iam" / policy).read_text())["Statement"]]
    return {one for action in actions for one in ([action] if isinstance(action, str) else action)}


def test_setup_permissions__are_exactly_those_listed(
    launch_host: Callable[..., tuple[Instance, Disk]], new_cloud: Callable[..., AwsCloud], cloud: AwsCloud, ec2: FakeEc2
) -> None:
    zone = [{"Name": "availability-zone", "Values": ["us-east-1a"]}]
    (subnet,) = client(ec2).describe_subnets(Filters=zone)["Subnets"]
    ec2.calls.clear()
    instance, disk = launch_host(callers="192.0.2.0/24")
    other, _ = launch_host("t2", callers="198.51.100.0/24", on=new_cloud(subnets={"us-east-1a": subnet["SubnetId"]}))
    (now,) = cloud.describe("us-east-1", [instance.id])
    assert cloud.attach_disk(now, disk)
    client(ec2).detach_volume(VolumeId=disk.id, InstanceId=instance.id)
    cloud.remove_disk("hosting-1", "us-east-1")
    cloud.terminate("us-east-1", [instance.id, other.id])
    cloud.release("ctl", "us-east-1")
    del ec2.calls["ec2:DetachVolume"]
    listed = actions("aws-up.json")
    assert listed - IMPLIED <= set(ec2.calls) <= listed | actions("aws-controller.json")


def test_host_role__has_the_listed_permissions_and_an_existing_one_is_kept(
    launch_host: Callable[..., tuple[Instance, Disk]], ec2: FakeEc2
) -> None:
    iam = client(ec2, "iam")
    listed = json.loads((ROOT / "deploy/iam/aws-controller.json").read_text())
    launch_host()
    attached = iam.get_role_policy(RoleName="perdure-controller", PolicyName="perdure-controller")
    assert attached["PolicyDocument"] == listed
    iam.untag_role(RoleName="perdure-controller", TagKeys=["perdure:made"])
    for policy in iam.list_role_policies(RoleName="perdure-controller")["PolicyNames"]:
        iam.delete_role_policy(RoleName="perdure-controller", PolicyName=policy)
    launch_host("t2")
    assert iam.list_role_policies(RoleName="perdure-controller")["PolicyNames"] == []


def test_host_role__may_use_buckets_and_make_keys_for_nodes(
    launch_host: Callable[..., tuple[Instance, Disk]], cloud: AwsCloud, ec2: FakeEc2
) -> None:
    iam = client(ec2, "iam")
    assert cloud.store_settings("perdure-controller") == {}, "there is no role yet"
    launch_host()
    attached = iam.get_role_policy(RoleName="perdure-controller", PolicyName="perdure-buckets")
    assert attached["PolicyDocument"] == json.loads((ROOT / "deploy/iam/aws-buckets.json").read_text())
    node = iam.get_role(RoleName="perdure-node")["Role"]
    assert cloud.store_settings("perdure-controller") == {"s3": {"node_role": node["Arn"]}}
    (trust,) = node["AssumeRolePolicyDocument"]["Statement"]
    own = iam.get_role(RoleName="perdure-controller")["Role"]["Arn"]
    assert trust["Condition"] == {"ArnEquals": {"aws:PrincipalArn": own}}
    of_node = iam.get_role_policy(RoleName="perdure-node", PolicyName="perdure-node")["PolicyDocument"]
    assert of_node == json.loads((ROOT / "deploy/iam/aws-node.json").read_text())


def test_upgrade__gives_a_role_of_an_earlier_version_what_this_one_needs(
    launch_host: Callable[..., tuple[Instance, Disk]], cloud: AwsCloud, ec2: FakeEc2
) -> None:
    iam = client(ec2, "iam")
    launch_host()
    iam.delete_role_policy(RoleName="perdure-controller", PolicyName="perdure-buckets")
    iam.delete_role_policy(RoleName="perdure-node", PolicyName="perdure-node")
    iam.delete_role(RoleName="perdure-node")
    cloud.renew_roles("perdure-controller")
    assert "perdure-buckets" in iam.list_role_policies(RoleName="perdure-controller")["PolicyNames"]
    assert "s3" in cloud.store_settings("perdure-controller")
    cloud.renew_roles("somebody-elses")
    assert len(iam.list_roles()["Roles"]) == 2


def test_host_role__of_the_users_own_gets_no_role_for_nodes(
    launch_host: Callable[..., tuple[Instance, Disk]], cloud: AwsCloud, ec2: FakeEc2
) -> None:
    iam = client(ec2, "iam")
    iam.create_role(RoleName="perdure-controller", AssumeRolePolicyDocument="{}")
    launch_host()
    assert [role["RoleName"] for role in iam.list_roles()["Roles"]] == ["perdure-controller"]
    assert cloud.store_settings("perdure-controller") == {}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("", {"node_role": "arn"}),
        ("s3: {region: us-west-2}", {"region": "us-west-2", "node_role": "arn"}),
        ("s3: {endpoint: 'https://t3.storage.dev'}", {"endpoint": "https://t3.storage.dev"}),
        ("s3: {node_role: mine}", {"node_role": "mine"}),
        ("s3: {share_keys: true}", {"share_keys": True}),
    ],
)
def test_bundle__names_the_role_of_nodes_unless_the_user_has_chosen(
    own: str, expected: dict[str, object], cloud: AwsCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text(f"aws: {{}}\n{own}\n")
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(bundle, "build_bundle", lambda config, **_: sent.append(config) or b"")
    monkeypatch.setattr(AwsCloud, "store_settings", lambda _self, _role: {"s3": {"node_role": "arn"}})
    config.build_bundle_for(tmp_path, cloud, "https://192.0.2.1:8443", 8443, "perdure-controller")
    assert sent[0]["s3"] == expected


def test_new_role__is_awaited(
    launch_host: Callable[..., tuple[Instance, Disk]], monkeypatch: pytest.MonkeyPatch, cloud: AwsCloud
) -> None:
    from botocore.exceptions import ClientError

    ec2 = cloud._connections.ec2("us-east-1")
    text = "Value (perdure-controller) for parameter iamInstanceProfile.name is invalid"
    refusal = ClientError({"Error": {"Code": "InvalidParameterValue", "Message": text}}, "RunInstances")
    with monkeypatch.context() as patched:
        patched.setattr(ec2, "run_instances", lambda **_: (_ for _ in ()).throw(refusal))
        with pytest.raises(EventuallyConsistent):
            launch_host()
    assert launch_host()[0].id


def test_user_data__is_small_and_complete(launch_host: Callable[..., tuple[Instance, Disk]], ec2: FakeEc2) -> None:
    instance, disk = launch_host()
    reported = client(ec2).describe_instance_attribute(InstanceId=instance.id, Attribute="userData")
    text = base64.b64decode(reported["UserData"]["Value"]).decode()
    assert len(text) < USER_DATA_LIMIT
    assert text.startswith("#cloud-config\n")
    parsed = yaml.safe_load(text)
    files = {
        one["path"]: (gzip.decompress(base64.b64decode(one["content"])).decode(), one) for one in parsed["write_files"]
    }
    program, how = files["/opt/perdure/installer.py"]
    assert CERTIFICATE in program
    compile(program, "caretaker.py", "exec")
    assert (how["owner"], how["permissions"], how["defer"]) == ("perdure:perdure", "0400", True)
    mount, start = parsed["runcmd"]
    assert mount[1:] == [
        f"/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_{disk.id.replace('-', '')}",
        "/var/lib/perdure",
    ]
    assert start == ["systemctl", "enable", "--now", "perdure-controller"]
    assert {command[0] for command in (mount,)} <= files.keys()
