"""The `aws:` section of `config.yaml`. AWS is used if the section is there, even an empty one.

aws:
  regions: [us-east-1, us-west-2]      # default: every region that the account has enabled
  profile: training                    # of ~/.aws; default: credentials as the AWS command line finds them
  images: {us-east-1: ami-0123…}       # default: Ubuntu, with NVIDIA's driver where there are GPUs
  subnets: {us-east-1a: subnet-0123…}  # default: the zone's subnet in the default VPC
  security_groups: {us-east-1: sg-0123…}  # default: that of the VPC
  instance_profile: training-node      # an IAM role for the machines; default: none
  fis_role: arn:aws:iam::123456789012:role/perdure-fis  # what rehearsed interruptions act under; default: none can be
  notice_queues: [https://sqs.us-east-1.amazonaws.com/123456789012/perdure]  # fed by EventBridge; default: none
  endpoint_url: https://…              # a private endpoint, for every service and region
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from perdure.controller.bounds import CLOUD_FIELDS
from perdure.controller.clouds.aws import notices
from perdure.controller.clouds.section import Section

_REGION = r"[a-z]{2}(-[a-z]+)+-\d+"
_A_QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/perdure"
_A_ROLE = "arn:aws:iam::123456789012:role/perdure-fis"
_ROLE = r"arn:aws[a-z-]*:iam::\d{12}:role/\S+"


@dataclass(frozen=True)
class AwsSettings:
    """`regions` empty: all that the account has enabled. `images`: region → AMI. `subnets`: zone → subnet.
    `security_groups`: region → security group.

    `notice_queues`: URLs of SQS queues that say what becomes of machines, besides the machines themselves.
    `fis_role`: the role that the Fault Injection Service interrupts machines under, None if it is not to be used.
    `placement_scores`: whether EC2 is asked for them, as evidence of how likely machines are to be taken.
    """

    regions: tuple[str, ...] = ()
    profile: str | None = None
    endpoint_url: str | None = None
    instance_profile: str | None = None
    images: dict[str, str] = field(default_factory=dict)
    subnets: dict[str, str] = field(default_factory=dict)
    security_groups: dict[str, str] = field(default_factory=dict)
    placement_scores: bool = False
    fis_role: str | None = None
    notice_queues: tuple[str, ...] = ()

    @classmethod
    def from_mapping(cls, mapping: object) -> AwsSettings:
        """From the section as it was read. Raises SettingsError, which names the field."""
        known = (*(field.name for field in fields(cls)), *CLOUD_FIELDS)
        section = Section({} if mapping is None else mapping, "aws", known=known)
        return cls(
            regions=section.names("regions", _REGION, what="region", like="us-east-1"),
            profile=section.text_or_none("profile"),
            endpoint_url=section.url_or_none("endpoint_url"),
            instance_profile=section.text_or_none("instance_profile"),
            images=section.part("images").texts(prefix="ami-"),
            subnets=section.part("subnets").texts(prefix="subnet-"),
            security_groups=section.part("security_groups").texts(prefix="sg-"),
            placement_scores=section.flag("placement_scores"),
            notice_queues=section.names("notice_queues", notices.URL, what="queue's URL", like=_A_QUEUE),
            fis_role=section.text_or_none("fis_role", _ROLE, what="role", like=_A_ROLE),
        )
