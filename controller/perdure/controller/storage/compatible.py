"""Clouds whose buckets speak S3's protocol: where each answers, and which section of `config.yaml` sets it up.

r2: {account_id: 0123abcd}                    # Cloudflare; credentials: profile r2 of ~/.cloudflare/r2.credentials
nebius: {region: eu-north1}                   # credentials: profile nebius of ~/.aws/credentials
oci: {namespace: acme, region: us-ashburn-1}  # Oracle; a customer secret key, in profile oci
coreweave: {region: US-EAST-04A}              # profile cw
vastdata: {endpoint: https://…}               # profile vastdata

All take `endpoint`, `region`, `profile` and `credentials_file` besides. Endpoints are from the providers' own
documentation.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perdure.controller.clouds.section import Section, SettingsError
from perdure.controller.storage.s3 import S3Store

_FIELDS = ("endpoint", "region", "profile", "credentials_file")


@dataclass(frozen=True)
class _Kind:
    """`endpoint`: with fields of the section in braces. `provider`: rclone's name. `region`: when none is named."""

    endpoint: str
    profile: str
    provider: str = "Other"
    region: str | None = None
    credentials_file: str | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """What the endpoint is made of."""
        return tuple(name for _, name, _, _ in string.Formatter().parse(self.endpoint) if name)


KINDS: Mapping[str, _Kind] = {
    "r2": _Kind(
        "https://{account_id}.r2.cloudflarestorage.com", "r2", "Cloudflare", "auto", "~/.cloudflare/r2.credentials"
    ),
    "nebius": _Kind("https://storage.{region}.nebius.cloud", "nebius", region="eu-north1"),
    "oci": _Kind("https://{namespace}.compat.objectstorage.{region}.oraclecloud.com", "oci"),
    "coreweave": _Kind("https://cwobject.com", "cw"),
    "vastdata": _Kind("{endpoint}", "vastdata"),
}


def compatible_store(name: str, mapping: object) -> S3Store:
    """The store `name` of `KINDS` as its section sets it up. Raises SettingsError, which names the field."""
    kind = KINDS[name]
    extra = tuple(field for field in kind.fields if field not in _FIELDS)
    section = Section({} if mapping is None else mapping, name, known=(*extra, *_FIELDS))
    region = section.text_or_none("region") or kind.region
    endpoint = section.url_or_none("endpoint") or _endpoint(kind, section, region)
    credentials_file = section.text_or_none("credentials_file") or kind.credentials_file
    return S3Store(
        name=name,
        endpoint=endpoint,
        region=region,
        profile=section.text("profile", kind.profile),
        credentials_file=Path(credentials_file).expanduser() if credentials_file else None,
        provider=kind.provider,
    )


def _endpoint(kind: _Kind, section: Section, region: str | None) -> str:
    values = {"region": region, **{name: section.text_or_none(name) for name in kind.fields if name != "region"}}
    for name in kind.fields:
        if values[name] is None:
            raise SettingsError("is missing", where=f"{section.where}.{name}", fix=f"{kind.endpoint} is made of it")
    return kind.endpoint.format(**values)
