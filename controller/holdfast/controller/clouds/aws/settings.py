"""The `aws:` section of `config.yaml`. AWS is used if the section is there, even an empty one.

aws:
  regions: [us-east-1, us-west-2]      # default: every region that the account has enabled
  profile: training                    # of ~/.aws; default: credentials as the AWS command line finds them
  images: {us-east-1: ami-0123…}       # default: Ubuntu, with NVIDIA's driver where there are GPUs
  subnets: {us-east-1a: subnet-0123…}  # default: the zone's subnet in the default VPC
  instance_profile: training-node      # an IAM role for the machines; default: none
  endpoint_url: https://…              # a private endpoint, for every service and region
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from holdfast.controller.clouds.local.settings import Section, SettingsError

_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d+")


@dataclass(frozen=True)
class AwsSettings:
    """`regions` empty: all that the account has enabled. `images`: region → AMI. `subnets`: zone → subnet.

    `placement_scores`: whether EC2 is asked for them, as evidence of how likely machines are to be taken.
    """

    regions: tuple[str, ...] = ()
    profile: str | None = None
    endpoint_url: str | None = None
    instance_profile: str | None = None
    images: dict[str, str] = field(default_factory=dict)
    subnets: dict[str, str] = field(default_factory=dict)
    placement_scores: bool = False

    @classmethod
    def from_mapping(cls, mapping: object) -> AwsSettings:
        """From the section as it was read. Raises SettingsError, which names the field."""
        known = ("regions", "profile", "endpoint_url", "instance_profile", "images", "subnets", "placement_scores")
        section = Section({} if mapping is None else mapping, "aws", known=known)
        return cls(
            regions=_regions(section),
            profile=_text(section, "profile"),
            endpoint_url=_url(section),
            instance_profile=_text(section, "instance_profile"),
            images=_names(section.part("images"), "ami-"),
            subnets=_names(section.part("subnets"), "subnet-"),
            placement_scores=_flag(section, "placement_scores"),
        )


def _text(section: Section, name: str) -> str | None:
    return section.text(name, "") if name in section.values else None


def _flag(section: Section, name: str) -> bool:
    value = section.values.get(name, False)
    if not isinstance(value, bool):
        raise SettingsError(f"{value!r} is neither", where=f"aws.{name}", fix="write true or false")
    return value


def _url(section: Section) -> str | None:
    url = _text(section, "endpoint_url")
    if url is not None and not url.startswith(("http://", "https://")):
        raise SettingsError(f"{url!r} is no URL", where="aws.endpoint_url", fix="write http://… or https://…")
    return url


def _regions(section: Section) -> tuple[str, ...]:
    value = section.values.get("regions") or []
    if not isinstance(value, list):
        raise SettingsError(f"{value!r} is no list", where="aws.regions", fix="write [us-east-1, …]")
    for region in value:
        if not isinstance(region, str) or not _REGION.fullmatch(region):
            raise SettingsError(f"{region!r} is no region", where="aws.regions", fix="write names like us-east-1")
    return tuple(dict.fromkeys(value))


def _names(section: Section, prefix: str) -> dict[str, str]:
    for place, value in section.values.items():
        if not isinstance(value, str) or not value.startswith(prefix):
            raise SettingsError(f"{value!r} is none", where=f"{section.where}.{place}", fix=f"write {prefix}…")
    return dict(section.values)
