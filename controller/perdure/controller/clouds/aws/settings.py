"""The `aws:` section of `config.yaml`. The controller uses AWS only if there is a section, which may be empty.

aws:
  regions: [us-east-1, us-west-2]      # default: all regions that the account has enabled
  profile: training                    # of ~/.aws; default: the AWS command line's credentials
  images: {us-east-1: ami-0123…}       # default: Ubuntu, with NVIDIA's driver on machines with GPUs
  subnets: {us-east-1a: subnet-0123…}  # default: the zone's subnet in the default VPC; else no other zone is used
  security_groups: {us-east-1: sg-0123…}  # default: the VPC's
  instance_profile: training-node      # an IAM role for the machines; default: none
  fis_role: arn:aws:iam::123456789012:role/perdure-fis  # for simulated interruptions; default: none, and they fail
  interruption_queues: [https://sqs.us-east-1.amazonaws.com/123456789012/perdure]  # fed by EventBridge; default: none
  endpoint_url: https://…              # a private endpoint, for every service and region
"""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.controller.clouds.aws import notices
from perdure.controller.clouds.base.config_section import Section
from perdure.controller.runtime.config.config_key import ConfigKey, child_names
from perdure.controller.runtime.config.limits import cloud_limit_keys

_REGION = r"[a-z]{2}(-[a-z]+)+-\d+"
_A_QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/perdure"
_A_ROLE = "arn:aws:iam::123456789012:role/perdure-fis"
_ROLE = r"arn:aws[a-z-]*:iam::\d{12}:role/\S+"

CONFIG_KEYS = (
    ConfigKey(
        "aws",
        "mapping",
        "none",
        "Enables AWS, even if it is empty; without this section Perdure never launches anything there.",
    ),
    ConfigKey(
        "aws.regions",
        "list of text",
        "[] (every enabled region)",
        "The regions in which machines may be launched.",
    ),
    ConfigKey(
        "aws.profile",
        "text",
        "the default chain",
        "The profile of ~/.aws that has the credentials.",
    ),
    ConfigKey(
        "aws.endpoint_url",
        "URL",
        "AWS",
        "A private endpoint, used for every service and region.",
    ),
    ConfigKey(
        "aws.instance_profile",
        "text",
        "none",
        "The instance profile (IAM role) of the machines.",
    ),
    ConfigKey(
        "aws.images.<region>",
        "text",
        "Ubuntu, with GPU drivers if needed",
        "The AMI of the region's machines.",
    ),
    ConfigKey(
        "aws.subnets.<zone>",
        "text",
        "that of the default VPC",
        "The subnet of the zone's machines. If one is named, the zones without one are not used.",
    ),
    ConfigKey(
        "aws.security_groups.<region>",
        "text",
        "that of the VPC",
        "The security group of the region's machines.",
    ),
    ConfigKey(
        "aws.placement_scores",
        "true or false",
        "false",
        "Whether to query EC2 spot placement scores and use them to estimate how likely interruptions are.",
    ),
    ConfigKey(
        "aws.fis_role",
        "text",
        "none (no simulated interruptions)",
        "The ARN of the role with which the Fault Injection Service simulates interruptions.",
    ),
    ConfigKey(
        "aws.interruption_queues",
        "list of URLs",
        "[]",
        "SQS queues, fed by EventBridge, that report interruptions and changes of state.",
    ),
    *cloud_limit_keys("aws"),
)


@dataclass(frozen=True)
class AwsSettings:
    """The settings of AWS."""

    #: Empty: all regions that the account has enabled.
    regions: tuple[str, ...] = ()
    profile: str | None = None
    endpoint_url: str | None = None
    instance_profile: str | None = None
    #: Region → AMI.
    images: dict[str, str] = field(default_factory=dict)
    #: Zone → subnet.
    subnets: dict[str, str] = field(default_factory=dict)
    #: Region → security group.
    security_groups: dict[str, str] = field(default_factory=dict)
    #: Whether to query EC2's placement scores, as evidence of how likely preemptions are.
    placement_scores: bool = False
    #: The role of the Fault Injection Service for simulated interruptions; None disables them.
    fis_role: str | None = None
    #: URLs of SQS queues with the events of machines.
    interruption_queues: tuple[str, ...] = ()

    @classmethod
    def from_mapping(cls, mapping: object) -> AwsSettings:
        """From the section of config.yaml. Raises SettingsError, which names the field."""
        section = Section({} if mapping is None else mapping, "aws", known=child_names(CONFIG_KEYS, "aws"))
        return cls(
            regions=section.names("regions", _REGION, kind="region", example="us-east-1"),
            profile=section.text_or_none("profile"),
            endpoint_url=section.url_or_none("endpoint_url"),
            instance_profile=section.text_or_none("instance_profile"),
            images=section.subsection("images").texts(prefix="ami-"),
            subnets=section.subsection("subnets").texts(prefix="subnet-"),
            security_groups=section.subsection("security_groups").texts(prefix="sg-"),
            placement_scores=section.flag("placement_scores"),
            interruption_queues=section.names("interruption_queues", notices.URL, kind="queue URL", example=_A_QUEUE),
            fis_role=section.text_or_none("fis_role", _ROLE, kind="role", example=_A_ROLE),
        )
