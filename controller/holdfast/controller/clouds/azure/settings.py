"""The `azure:` section of `config.yaml`. Azure is used if the section is there.

azure:
  subscription: 0b1f6471-…          # default: AZURE_SUBSCRIPTION_ID
  regions: [eastus, westus3]        # default: every region that the built-in table knows
  resource_group: holdfast          # groups are named after it and their region: holdfast-eastus; made when missing
  images: {eastus: "Canonical:ubuntu-24_04-lts:server:latest"}   # or an image's resource id
  subnets: {eastus: /subscriptions/…/subnets/training}           # default: a network of its own
  public_ips: false                 # default: true, but false where `subnets` names one
  identity: /subscriptions/…/userAssignedIdentities/training     # for the machines; default: none
  endpoint_url: https://…           # another Resource Manager than Azure's public one
  ca_file: /etc/ssl/private-ca.pem  # whom to trust about that one's certificate
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.controller.bounds import CLOUD_FIELDS
from holdfast.controller.clouds.section import Section

_KNOWN = (
    "subscription",
    "regions",
    "resource_group",
    "images",
    "subnets",
    "public_ips",
    "identity",
    "endpoint_url",
    "ca_file",
)


@dataclass(frozen=True)
class AzureSettings:
    """`regions` empty: all that the catalog knows. `images`: region → URN or id. `subnets`: region → id.

    `public_ips` None: where the subnet is Holdfast's own.
    """

    subscription: str | None = None
    regions: tuple[str, ...] = ()
    resource_group: str = "holdfast"
    images: dict[str, str] = field(default_factory=dict)
    subnets: dict[str, str] = field(default_factory=dict)
    public_ips: bool | None = None
    identity: str | None = None
    endpoint_url: str | None = None
    ca_file: str | None = None

    @classmethod
    def from_mapping(cls, mapping: object) -> AzureSettings:
        """From the section as it was read. Raises SettingsError, which names the field."""
        section = Section({} if mapping is None else mapping, "azure", known=(*_KNOWN, *CLOUD_FIELDS))
        return cls(
            subscription=section.text_or_none("subscription"),
            regions=section.names("regions", "[a-z]+[0-9]?", what="region", like="eastus"),
            resource_group=section.text("resource_group", "holdfast"),
            images=section.part("images").texts(),
            subnets=section.part("subnets").texts(prefix="/subscriptions/"),
            public_ips=section.flag("public_ips") if "public_ips" in section.values else None,
            identity=section.text_or_none("identity"),
            endpoint_url=section.url_or_none("endpoint_url"),
            ca_file=section.text_or_none("ca_file"),
        )

    def wants_public_ip(self, region: str) -> bool:
        return self.public_ips if self.public_ips is not None else region not in self.subnets
