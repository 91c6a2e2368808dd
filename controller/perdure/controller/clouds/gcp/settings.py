"""The `gcp:` section of `config.yaml`. The controller uses Google Cloud only if there is a section, which may be empty.

gcp:
  project: my-project                  # default: the project of the credentials
  credentials: /etc/perdure/gcp.json  # a service account's key; default: Application Default Credentials
  regions: [us-central1, us-east4]     # default: all regions of the project
  network: training                    # a VPC network; default: the network named default
  subnets: {us-central1: training-a}   # default: the region's subnet in that network; else only these regions
  external_ip: false                   # machines reach the controller internally, or through NAT; default: true
  service_account: node@….iam.gserviceaccount.com  # for the machines; default: none
  image: projects/P/global/images/family/F         # default: Ubuntu, with NVIDIA's driver on machines with GPUs
  preemption_notice: true              # request 120 s of notice (a preview feature of Google's)
  interruption_queues: [projects/my-project/subscriptions/perdure]  # of Pub/Sub, or its URL elsewhere; default: none
  endpoint_url: https://…              # a private endpoint
"""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.controller.clouds.base.config_section import Section
from perdure.controller.runtime.config.config_key import ConfigKey, child_names
from perdure.controller.runtime.config.limits import cloud_limit_keys

_REGION = r"[a-z]+-[a-z]+\d+"
_SUBSCRIPTION = r"(https?://[\w.:-]+/v1/)?projects/[\w.:-]+/subscriptions/[A-Za-z][\w.~+%-]{2,254}"
_A_QUEUE = "projects/my-project/subscriptions/perdure"

CONFIG_KEYS = (
    ConfigKey(
        "gcp",
        "mapping",
        "none",
        "Enables Google Cloud, even if it is empty; without this section Perdure never launches anything there.",
    ),
    ConfigKey(
        "gcp.project",
        "text",
        "that of the credentials",
        "The project in which machines are launched.",
    ),
    ConfigKey(
        "gcp.credentials",
        "path",
        "application default credentials",
        "The key file of a service account.",
    ),
    ConfigKey(
        "gcp.regions",
        "list of text",
        "[] (every region of the project)",
        "The regions in which machines may be launched.",
    ),
    ConfigKey(
        "gcp.network",
        "text",
        "default",
        "The VPC network of the machines.",
    ),
    ConfigKey(
        "gcp.subnets.<region>",
        "text",
        "the region's subnet in the network",
        "The subnet of the region's machines. If one is named, regions without one are not used.",
    ),
    ConfigKey(
        "gcp.external_ip",
        "true or false",
        "true",
        "Whether machines get an external IP; without one they need NAT or a private route to the controller.",
    ),
    ConfigKey(
        "gcp.service_account",
        "text",
        "none",
        "The service account of the machines.",
    ),
    ConfigKey(
        "gcp.image",
        "text",
        "Ubuntu, with GPU drivers if needed",
        "The image or image family of the machines.",
    ),
    ConfigKey(
        "gcp.preemption_notice",
        "true or false",
        "false",
        "Whether to request a preemption notice of 120 s, which Google offers as a preview.",
    ),
    ConfigKey(
        "gcp.interruption_queues",
        "list of text",
        "[]",
        "Pub/Sub subscriptions, by name or URL, that report preemptions and changes of state.",
    ),
    ConfigKey(
        "gcp.endpoint_url",
        "URL",
        "Google",
        "A private endpoint of the APIs.",
    ),
    *cloud_limit_keys("gcp"),
)


@dataclass(frozen=True)
class GcpSettings:
    """The settings of Google Cloud."""

    #: None: the project of the credentials.
    project: str | None = None
    #: The path of a service account's key.
    credentials: str | None = None
    #: Empty: all regions of the project.
    regions: tuple[str, ...] = ()
    network: str = "default"
    #: Region → name.
    subnets: dict[str, str] = field(default_factory=dict)
    external_ip: bool = True
    service_account: str | None = None
    image: str | None = None
    preemption_notice: bool = False
    #: Pub/Sub subscriptions with the events of machines, each by name or URL.
    interruption_queues: tuple[str, ...] = ()
    endpoint_url: str | None = None

    @classmethod
    def from_mapping(cls, mapping: object) -> GcpSettings:
        """From the section of config.yaml. Raises SettingsError, which names the field."""
        section = Section({} if mapping is None else mapping, "gcp", known=child_names(CONFIG_KEYS, "gcp"))
        return cls(
            project=section.text_or_none("project"),
            credentials=section.text_or_none("credentials"),
            regions=section.names("regions", _REGION, kind="region", example="us-central1"),
            network=section.text("network", "default"),
            subnets=section.subsection("subnets").texts(),
            external_ip=section.flag("external_ip", default=True),
            service_account=section.text_or_none("service_account"),
            image=section.text_or_none("image"),
            preemption_notice=section.flag("preemption_notice"),
            interruption_queues=section.names(
                "interruption_queues", _SUBSCRIPTION, kind="subscription", example=_A_QUEUE
            ),
            endpoint_url=section.url_or_none("endpoint_url"),
        )
