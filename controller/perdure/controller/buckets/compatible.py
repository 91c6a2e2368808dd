"""Stores with S3's protocol: their endpoints, and the section of `config.yaml` that configures each.

r2: {account_id: 0123abcd}                    # Cloudflare; credentials: profile r2 of ~/.cloudflare/r2.credentials
nebius: {region: eu-north1}                   # credentials: profile nebius of ~/.aws/credentials
oci: {namespace: acme, region: us-ashburn-1}  # Oracle; a customer secret key, in profile oci
coreweave: {region: US-EAST-04A}              # profile cw
vastdata: {endpoint: https://…}               # profile vastdata

All also accept `endpoint`, `region`, `profile` and `credentials_file`. The endpoints are from the providers'
documentation.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perdure.controller.buckets.s3 import S3Store
from perdure.controller.clouds.base.config_section import Section, SectionError
from perdure.controller.runtime.config.config_key import ConfigKey, child_names


@dataclass(frozen=True)
class _Provider:
    """A provider of an S3-compatible store, with the defaults of its section."""

    endpoint: str  # contains keys of the section in braces
    profile: str
    rclone_name: str = "Other"
    region: str | None = None
    credentials_file: str | None = None

    @property
    def endpoint_keys(self) -> tuple[str, ...]:
        """The keys of the section that the endpoint contains."""
        return tuple(name for _, name, _, _ in string.Formatter().parse(self.endpoint) if name)


COMPATIBLE_STORES: Mapping[str, _Provider] = {
    "r2": _Provider(
        "https://{account_id}.r2.cloudflarestorage.com", "r2", "Cloudflare", "auto", "~/.cloudflare/r2.credentials"
    ),
    "nebius": _Provider("https://storage.{region}.nebius.cloud", "nebius", region="eu-north1"),
    "oci": _Provider("https://{namespace}.compat.objectstorage.{region}.oraclecloud.com", "oci"),
    "coreweave": _Provider("https://cwobject.com", "cw"),
    "vastdata": _Provider("{endpoint}", "vastdata"),
}


def _keys(name: str, provider: _Provider) -> tuple[ConfigKey, ...]:
    special = {
        "account_id": ConfigKey(f"{name}.account_id", "text", "required", "The Cloudflare account of the buckets."),
        "namespace": ConfigKey(f"{name}.namespace", "text", "required", "The Object Storage namespace of the tenancy."),
    }
    endpoint = "required" if provider.endpoint == "{endpoint}" else provider.endpoint
    region = provider.region or ("required" if "region" in provider.endpoint_keys else "that of the profile")
    file = provider.credentials_file or "~/.aws/credentials"
    return (
        *(special[key] for key in provider.endpoint_keys if key in special),
        ConfigKey(f"{name}.endpoint", "URL", endpoint, "The server that stores the buckets."),
        ConfigKey(f"{name}.region", "text", region, "The region of new buckets."),
        ConfigKey(f"{name}.profile", "text", provider.profile, "The profile with the access key."),
        ConfigKey(f"{name}.credentials_file", "path", file, "The file that contains the profile."),
    )


COMPATIBLE_KEYS = tuple(key for name, provider in COMPATIBLE_STORES.items() for key in _keys(name, provider))


def compatible_store(name: str, mapping: object) -> S3Store:
    """The store `name` of COMPATIBLE_STORES, from its section. Raises SettingsError, which names the key."""
    provider = COMPATIBLE_STORES[name]
    section = Section({} if mapping is None else mapping, name, known=child_names(COMPATIBLE_KEYS, name))
    region = section.text_or_none("region") or provider.region
    endpoint = section.url_or_none("endpoint") or _endpoint(provider, section, region)
    credentials_file = section.text_or_none("credentials_file") or provider.credentials_file
    return S3Store(
        name=name,
        endpoint=endpoint,
        region=region,
        profile=section.text("profile", provider.profile),
        credentials_file=Path(credentials_file).expanduser() if credentials_file else None,
        provider=provider.rclone_name,
    )


def _endpoint(provider: _Provider, section: Section, region: str | None) -> str:
    values = {
        "region": region,
        **{name: section.text_or_none(name) for name in provider.endpoint_keys if name != "region"},
    }
    for name in provider.endpoint_keys:
        if values[name] is None:
            raise SectionError(
                "is missing", where=f"{section.where}.{name}", fix=f"the endpoint {provider.endpoint} contains it"
            )
    return provider.endpoint.format(**values)
