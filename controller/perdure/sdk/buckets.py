"""Names and URIs of buckets."""

from __future__ import annotations

import re
from dataclasses import dataclass

from perdure.sdk.problems import Refused, choice_fix, shown

# URI scheme → store.
SCHEMES = {
    "s3": "S3",
    "gs": "GCS",
    "r2": "R2",
    "https": "AZURE",
    "cos": "IBM",
    "oci": "OCI",
    "nebius": "NEBIUS",
    "cw": "COREWEAVE",
    "vastdata": "VASTDATA",
    "hf": "HF",
    "local": "LOCAL",
}
STORES = (*SCHEMES.values(), "VOLUME")

_NAME = r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]"
_AZURE_HOST = ".blob.core.windows.net"


@dataclass(frozen=True)
class BucketURI:
    """A place in a bucket. `prefix` has no slash at either end.

    `account`: the storage account (Azure) or the region (IBM), which are part of their URIs; None elsewhere.
    """

    store: str
    bucket: str
    prefix: str = ""
    account: str | None = None


def is_uri(text: str) -> bool:
    return "://" in text


def parse(uri: str) -> BucketURI:
    """The parts of a bucket's URI. `Refused` if it names no bucket."""
    scheme, _, rest = uri.partition("://")
    store = SCHEMES.get(scheme.lower())
    if store is None:
        options = [f"{name}://" for name in SCHEMES]
        raise Refused(f"unknown scheme in {shown(uri)}", choice_fix(f"{scheme}://", options))
    names = [part for part in rest.split("/") if part]
    if store == "HF":
        return BucketURI(store, _present("/".join(names), uri))
    account = None
    if store in ("AZURE", "IBM"):
        account = _present(names.pop(0) if names else "", uri)
    if store == "AZURE":
        if not account or not account.endswith(_AZURE_HOST):
            raise Refused(f"{shown(uri)} is no bucket", f"https:// is for https://<account>{_AZURE_HOST}/<container>")
        account = account.removesuffix(_AZURE_HOST)
    return BucketURI(store, _present(names[0] if names else "", uri), "/".join(names[1:]), account)


def read_uri(value: object) -> str:
    """The URI as it is written, once it is known to name a bucket."""
    parse(str(value))
    return str(value)


def read_name(value: object) -> str:
    """A bucket's name. `Refused` if no store would take it."""
    name = str(value)
    if "$" in name:
        raise Refused(f"{shown(name)} refers to a variable that has no value", "define it under `envs`")
    if is_uri(name):
        raise Refused(f"found the URI {shown(name)}", "write it as `source`, and leave `name` out")
    if not re.fullmatch(_NAME, name):
        rule = "3 to 63 lower-case letters, digits, dots, dashes or underscores, with a letter or digit at both ends"
        raise Refused(f"{shown(name)} is no bucket name", f"use {rule}")
    return name


def _present(name: str, uri: str) -> str:
    if not name or "$" in name:
        raise Refused(f"{shown(uri)} names no bucket", "write it like s3://bucket/folder")
    return name
