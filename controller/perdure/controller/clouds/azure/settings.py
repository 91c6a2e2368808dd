"""The `azure:` section of `config.yaml`. Azure is used if the section is there.

azure:
  subscription: 0b1f6471-…          # default: AZURE_SUBSCRIPTION_ID
  regions: [eastus, westus3]        # default: every region that the built-in table knows
  resource_group: perdure          # groups are named after it and their region: perdure-eastus; made when missing
  images: {eastus: "Canonical:ubuntu-24_04-lts:server:latest"}   # or an image's resource id
  subnets: {eastus: /subscriptions/…/subnets/training}           # default: a network of its own
  public_ips: false                 # default: true, but false where `subnets` names one
  identity: /subscriptions/…/userAssignedIdentities/training     # for the machines; default: none
  notice_queues: [https://account.queue.core.windows.net/perdure]  # fed by Event Grid; default: none
  endpoint_url: https://…           # another Resource Manager than Azure's public one
  prices_url: https://…             # another list of retail prices than Azure's public one
  ca_file: /etc/ssl/private-ca.pem  # whom to trust about that one's certificate, and the queues'
"""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.controller.bounds import CLOUD_FIELDS
from perdure.controller.clouds.section import Section

_KNOWN = (
    "subscription",
    "regions",
    "resource_group",
    "images",
    "subnets",
    "public_ips",
    "identity",
    "notice_queues",
    "endpoint_url",
    "prices_url",
    "ca_file",
)

_QUEUE = r"https://[\w.:-]+(/[a-z0-9]+)?/[a-z0-9](-?[a-z0-9]){2,62}"
_A_QUEUE = "https://account.queue.core.windows.net/perdure"


@dataclass(frozen=True)
class AzureSettings:
    """`regions` empty: all that the catalog knows. `images`: region → URN or id. `subnets`: region → id.

    `public_ips` None: where the subnet is Perdure's own. `notice_queues`: URLs of storage queues that say what becomes
    of machines, besides the machines themselves.
    """

    subscription: str | None = None
    regions: tuple[str, ...] = ()
    resource_group: str = "perdure"
    images: dict[str, str] = field(default_factory=dict)
    subnets: dict[str, str] = field(default_factory=dict)
    public_ips: bool | None = None
    identity: str | None = None
    notice_queues: tuple[str, ...] = ()
    endpoint_url: str | None = None
    prices_url: str | None = None
    ca_file: str | None = None

    @classmethod
    def from_mapping(cls, mapping: object) -> AzureSettings:
        """From the section as it was read. Raises SettingsError, which names the field."""
        section = Section({} if mapping is None else mapping, "azure", known=(*_KNOWN, *CLOUD_FIELDS))
        return cls(
            subscription=section.text_or_none("subscription"),
            regions=section.names("regions", "[a-z]+[0-9]?", what="region", like="eastus"),
            resource_group=section.text("resource_group", "perdure"),
            images=section.part("images").texts(),
            subnets=section.part("subnets").texts(prefix="/subscriptions/"),
            public_ips=section.flag("public_ips") if "public_ips" in section.values else None,
            identity=section.text_or_none("identity"),
            notice_queues=section.names("notice_queues", _QUEUE, what="queue's URL", like=_A_QUEUE),
            endpoint_url=section.url_or_none("endpoint_url"),
            prices_url=section.url_or_none("prices_url"),
            ca_file=section.text_or_none("ca_file"),
        )

    def wants_public_ip(self, region: str) -> bool:
        return self.public_ips if self.public_ips is not None else region not in self.subnets
