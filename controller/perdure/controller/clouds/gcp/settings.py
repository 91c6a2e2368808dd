"""The `gcp:` section of `config.yaml`. Google Cloud is used if the section is there, even an empty one.

gcp:
  project: my-project                  # default: that of the credentials
  credentials: /etc/perdure/gcp.json  # a service account's key; default: credentials as Google's own tools find them
  regions: [us-central1, us-east4]     # default: every region of the project
  network: training                    # a VPC network; default: the one called default
  subnets: {us-central1: training-a}   # default: the region's subnet in that network
  external_ip: false                   # machines reach the controller by themselves, or by NAT; default: true
  service_account: node@….iam.gserviceaccount.com  # for the machines; default: none
  image: projects/P/global/images/family/F         # default: Ubuntu, with NVIDIA's driver where there are GPUs
  preemption_notice: true              # ask for 120 s of notice (Google calls it a preview)
  notice_queues: [projects/my-project/subscriptions/perdure]  # of Pub/Sub, or its URL elsewhere; default: none
  endpoint_url: https://…              # a private endpoint
"""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.controller.bounds import CLOUD_FIELDS
from perdure.controller.clouds.section import Section

_REGION = r"[a-z]+-[a-z]+\d+"
_SUBSCRIPTION = r"(https?://[\w.:-]+/v1/)?projects/[\w.:-]+/subscriptions/[A-Za-z][\w.~+%-]{2,254}"
_A_QUEUE = "projects/my-project/subscriptions/perdure"
_KNOWN = (
    *("project", "credentials", "regions", "network", "subnets", "external_ip", "service_account", "image"),
    *("preemption_notice", "notice_queues", "endpoint_url"),
)


@dataclass(frozen=True)
class GcpSettings:
    """`project` None: that of the credentials. `regions` empty: all of the project. `subnets`: region → name.

    `credentials`: the path of a service account's key. `notice_queues`: subscriptions of Pub/Sub's that say what
    becomes of machines, besides the machines themselves; each by its name, or by its URL.
    """

    project: str | None = None
    credentials: str | None = None
    regions: tuple[str, ...] = ()
    network: str = "default"
    subnets: dict[str, str] = field(default_factory=dict)
    external_ip: bool = True
    service_account: str | None = None
    image: str | None = None
    preemption_notice: bool = False
    notice_queues: tuple[str, ...] = ()
    endpoint_url: str | None = None

    @classmethod
    def from_mapping(cls, mapping: object) -> GcpSettings:
        """From the section as it was read. Raises SettingsError, which names the field."""
        section = Section({} if mapping is None else mapping, "gcp", known=(*_KNOWN, *CLOUD_FIELDS))
        return cls(
            project=section.text_or_none("project"),
            credentials=section.text_or_none("credentials"),
            regions=section.names("regions", _REGION, what="region", like="us-central1"),
            network=section.text("network", "default"),
            subnets=section.part("subnets").texts(),
            external_ip=section.flag("external_ip", default=True),
            service_account=section.text_or_none("service_account"),
            image=section.text_or_none("image"),
            preemption_notice=section.flag("preemption_notice"),
            notice_queues=section.names("notice_queues", _SUBSCRIPTION, what="subscription", like=_A_QUEUE),
            endpoint_url=section.url_or_none("endpoint_url"),
        )
