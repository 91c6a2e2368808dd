"""The `azure:` section of `config.yaml`. The controller uses Azure only if there is a section, which may be empty.

azure:
  subscription: 0b1f6471-…          # default: AZURE_SUBSCRIPTION_ID
  regions: [eastus, westus3]        # default: all regions of the built-in table
  resource_group: perdure          # prefix of the groups' names, such as perdure-eastus; created if missing
  images: {eastus: "Canonical:ubuntu-24_04-lts:server:latest"}   # or an image's resource id
  subnets: {eastus: /subscriptions/…/subnets/training}           # default: its own; else only these regions
  public_ips: false                 # default: true, but false where `subnets` names one
  identity: /subscriptions/…/userAssignedIdentities/training     # for the machines; default: none
  interruption_queues: [https://account.queue.core.windows.net/perdure]  # fed by Event Grid; default: none
  endpoint_url: https://…           # another Resource Manager than Azure's public one
  prices_url: https://…             # another list of retail prices than Azure's public one
  ca_file: /etc/ssl/private-ca.pem  # the certificate authority of the endpoint and of the queues
"""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.controller.clouds.base.config_section import Section
from perdure.controller.runtime.config.config_key import ConfigKey, child_names
from perdure.controller.runtime.config.limits import cloud_limit_keys

_QUEUE = r"https://[\w.:-]+(/[a-z0-9]+)?/[a-z0-9](-?[a-z0-9]){2,62}"
_A_QUEUE = "https://account.queue.core.windows.net/perdure"

CONFIG_KEYS = (
    ConfigKey(
        "azure",
        "mapping",
        "none",
        "Enables Azure, even if it is empty; without this section Perdure never launches anything there.",
    ),
    ConfigKey(
        "azure.subscription",
        "text",
        "AZURE_SUBSCRIPTION_ID",
        "The subscription in which machines are launched.",
    ),
    ConfigKey(
        "azure.regions",
        "list of text",
        "[] (every region of the built-in table)",
        "The regions in which machines may be launched.",
    ),
    ConfigKey(
        "azure.resource_group",
        "text",
        "perdure",
        "The prefix of the resource groups, one per region (perdure-eastus); created if missing.",
    ),
    ConfigKey(
        "azure.images.<region>",
        "text",
        "Ubuntu, with GPU drivers if needed",
        "The URN or resource id of the image of the region's machines.",
    ),
    ConfigKey(
        "azure.subnets.<region>",
        "text",
        "a network that Perdure creates",
        "The resource id of the subnet of the region's machines. If one is named, regions without one are not used.",
    ),
    ConfigKey(
        "azure.public_ips",
        "true or false",
        "true; false in regions with a subnet of yours",
        "Whether machines get a public IP for outbound traffic.",
    ),
    ConfigKey(
        "azure.identity",
        "text",
        "none",
        "The resource id of the machines' user-assigned managed identity.",
    ),
    ConfigKey(
        "azure.interruption_queues",
        "list of URLs",
        "[]",
        "Storage queues, fed by Event Grid, that report evictions and changes of state.",
    ),
    ConfigKey(
        "azure.endpoint_url",
        "URL",
        "Azure",
        "Another Resource Manager than Azure's public one.",
    ),
    ConfigKey(
        "azure.prices_url",
        "URL",
        "Azure",
        "Another list of retail prices than Azure's public one.",
    ),
    ConfigKey(
        "azure.ca_file",
        "path",
        "the system's authorities",
        "The PEM file of the authorities that sign the certificates of private endpoints and queues.",
    ),
    *cloud_limit_keys("azure"),
)


@dataclass(frozen=True)
class AzureSettings:
    """`regions` empty: all that the catalog knows. `images`: region → URN or id. `subnets`: region → id.

    `public_ips` None: where the subnet is Perdure's own. `interruption_queues`: URLs of storage queues that report
    what happens to machines, in addition to the machines themselves.
    """

    subscription: str | None = None
    regions: tuple[str, ...] = ()
    resource_group: str = "perdure"
    images: dict[str, str] = field(default_factory=dict)
    subnets: dict[str, str] = field(default_factory=dict)
    public_ips: bool | None = None
    identity: str | None = None
    interruption_queues: tuple[str, ...] = ()
    endpoint_url: str | None = None
    prices_url: str | None = None
    ca_file: str | None = None

    @classmethod
    def from_mapping(cls, mapping: object) -> AzureSettings:
        """From the section of config.yaml. Raises SettingsError, which names the field."""
        section = Section({} if mapping is None else mapping, "azure", known=child_names(CONFIG_KEYS, "azure"))
        return cls(
            subscription=section.text_or_none("subscription"),
            regions=section.names("regions", "[a-z]+[0-9]?", kind="region", example="eastus"),
            resource_group=section.text("resource_group", "perdure"),
            images=section.subsection("images").texts(),
            subnets=section.subsection("subnets").texts(prefix="/subscriptions/"),
            public_ips=section.flag("public_ips") if "public_ips" in section.values else None,
            identity=section.text_or_none("identity"),
            interruption_queues=section.names("interruption_queues", _QUEUE, kind="queue URL", example=_A_QUEUE),
            endpoint_url=section.url_or_none("endpoint_url"),
            prices_url=section.url_or_none("prices_url"),
            ca_file=section.text_or_none("ca_file"),
        )

    def wants_public_ip(self, region: str) -> bool:
        return self.public_ips if self.public_ips is not None else region not in self.subnets
