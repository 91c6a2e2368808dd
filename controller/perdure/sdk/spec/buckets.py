"""Names and URIs of buckets."""

from __future__ import annotations

import re
from dataclasses import dataclass

from perdure.sdk.spec.problems import InvalidValue, choice_fix, describe

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
    """A folder in a bucket."""

    store: str
    bucket: str
    prefix: str = ""  # without a slash at either end
    account: str | None = None  # Azure: the storage account; IBM: the region, which is part of its URIs


def is_uri(text: str) -> bool:
    return "://" in text


def parse(uri: str) -> BucketURI:
    """The parts of a bucket's URI. Raises InvalidValue if it names no bucket, or holds a user or a password."""
    scheme, _, rest = uri.partition("://")
    if "@" in rest.partition("/")[0]:
        raise InvalidValue(
            "the URI holds a user or a password", "write it like s3://bucket/folder; the controller has credentials"
        )
    store = SCHEMES.get(scheme.lower())
    if store is None:
        options = [f"{name}://" for name in SCHEMES]
        raise InvalidValue(f"unknown scheme in {describe(uri)}", choice_fix(f"{scheme}://", options))
    names = [part for part in rest.split("/") if part]
    if store == "HF":
        return BucketURI(store, _present("/".join(names), uri))
    account = None
    if store in ("AZURE", "IBM"):
        account = _present(names.pop(0) if names else "", uri)
    if store == "AZURE":
        if not account or not account.endswith(_AZURE_HOST):
            raise InvalidValue(
                f"{describe(uri)} is not a bucket", f"https:// is for https://<account>{_AZURE_HOST}/<container>"
            )
        account = account.removesuffix(_AZURE_HOST)
    return BucketURI(store, _present(names[0] if names else "", uri), "/".join(names[1:]), account)


def validate_uri(value: object) -> str:
    """Return the URI unchanged. Raises InvalidValue if it names no bucket."""
    parse(str(value))
    return str(value)


def validate_name(value: object) -> str:
    """Return a bucket's name unchanged. Raises InvalidValue if no store would accept it."""
    name = str(value)
    if "$" in name:
        raise InvalidValue(f"{describe(name)} refers to a variable that has no value", "define it under `envs`")
    if is_uri(name):
        raise InvalidValue(f"found the URI {describe(name)}", "write it as `source`, and remove `name`")
    if not re.fullmatch(_NAME, name):
        rule = "3 to 63 lower-case letters, digits, dots, dashes or underscores, with a letter or digit at both ends"
        raise InvalidValue(f"{describe(name)} is not a bucket name", f"use {rule}")
    return name


def _present(name: str, uri: str) -> str:
    if not name or "$" in name:
        raise InvalidValue(f"{describe(uri)} names no bucket", "write it like s3://bucket/folder")
    return name
