"""Builds the stores from the configuration. A store's SDK is imported when one of its buckets is first used."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from perdure.controller.buckets.azure import AzureStore
from perdure.controller.buckets.compatible import COMPATIBLE_KEYS, COMPATIBLE_STORES, compatible_store
from perdure.controller.buckets.gcs import GcsStore
from perdure.controller.buckets.s3 import S3Store
from perdure.controller.buckets.service import StorageService
from perdure.controller.buckets.stores import LocalStore, Store
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.base.config_section import Section, locate_errors
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.runtime.clock import Clock, SystemClock
from perdure.controller.runtime.config.config_key import ConfigKey, child_names
from perdure.controller.runtime.config.settings import Settings

CONFIG_KEYS = (
    ConfigKey(
        "s3.endpoint", "URL", "AWS", "An S3-compatible server; AWS_ENDPOINT_URL_S3 and AWS_ENDPOINT_URL also set it."
    ),
    ConfigKey("s3.region", "text", "that of the default chain, or us-east-1", "The region of new buckets."),
    ConfigKey("s3.profile", "text", "the default chain", "The profile of ~/.aws that has the credentials."),
    ConfigKey(
        "s3.node_role",
        "ARN",
        "none",
        "The role whose credentials machines get, restricted to their bucket and prefix. Without one, they are made of "
        "the controller's own keys (sts:GetFederationToken). A controller with a role of its own needs one, or "
        "`aws.instance_profile`.",
    ),
    ConfigKey("s3.sts_endpoint", "URL", "AWS", "The Security Token Service of an S3-compatible server, if it has one."),
    ConfigKey("s3.share_keys", "true or false", "false", "Whether machines get the controller's own keys of S3."),
    ConfigKey("gcs.project", "text", "gcp.project, or that of the credentials", "The project of new buckets."),
    ConfigKey("gcs.credentials", "path", "gcp.credentials", "The key file of a service account."),
    ConfigKey("gcs.location", "text", "Google's default (US)", "The location of new buckets."),
    ConfigKey("gcs.endpoint", "URL", "Google", "Another server that implements the JSON API and exchanges tokens."),
    ConfigKey(
        "azure_blob.account",
        "text",
        "AZURE_STORAGE_ACCOUNT",
        "The storage account of containers for which a task gives only a name.",
    ),
    ConfigKey("azure_blob.endpoint", "URL", "Azure", "The endpoint of that account."),
    *COMPATIBLE_KEYS,
)


def configured_stores(
    settings: Settings, *, buckets_on_node: str | None, clock: Clock | None = None
) -> dict[str, Store]:
    """The stores that this controller can use, by name. S3, Google and Azure are available without a section.

    `buckets_on_node`: the path of the local buckets on local machines; None without a local cloud. `clock`: wall-clock
    time; None: this computer's. Raises SettingsError, which names the key.
    """
    stores: dict[str, Store] = {}
    if settings.local_home is not None and buckets_on_node is not None:
        stores["local"] = LocalStore(settings.local_home / "local" / "buckets", root_on_node=buckets_on_node)
    with locate_errors(settings.home):
        if _is_installed("boto3"):
            stores["s3"] = _s3(settings.sections.get("s3"))
            for name in COMPATIBLE_STORES:
                if name in settings.sections:
                    stores[name] = compatible_store(name, settings.sections[name])
        if _is_installed("google.auth"):
            stores["gcs"] = _gcs(settings.sections)
        if _is_installed("azure.storage.blob"):
            stores["azure"] = _azure(settings.sections, clock or SystemClock())
    return stores


def build_storage(
    settings: Settings,
    *,
    database: Engine,
    owner: str,
    archive: Callable[[str], Path],
    clock: Clock,
    wall_clock: Clock,
    buckets_on_node: str | None,
) -> StorageService:
    """The storage service over the configured stores. Raises SettingsError, which names the key."""
    stores = configured_stores(settings, buckets_on_node=buckets_on_node, clock=wall_clock)
    default_store = settings.default_store or next(iter(stores), "s3")
    account = azure_account(stores)
    return StorageService(
        stores,
        database,
        owner,
        archive,
        clock,
        default_store=default_store,
        account=account,
        max_unpacked_bytes=settings.max_unpacked_bytes,
    )


def azure_account(stores: Mapping[str, Store]) -> str | None:
    """The storage account of Azure containers for which a task gives only a name."""
    azure = stores.get("azure")
    return azure.account if isinstance(azure, AzureStore) else None


def _s3(mapping: object) -> S3Store:
    section = Section({} if mapping is None else mapping, "s3", known=child_names(CONFIG_KEYS, "s3"))
    return S3Store(
        endpoint=section.url_or_none("endpoint"),
        region=section.text_or_none("region"),
        profile=section.text_or_none("profile"),
        node_role=section.text_or_none("node_role"),
        sts_endpoint=section.url_or_none("sts_endpoint"),
        share_keys=section.flag("share_keys", default=False),
    )


def _gcs(sections: Mapping[str, Any]) -> GcsStore:
    """Project and credentials default to those of the machines."""
    section = Section(sections.get("gcs") or {}, "gcs", known=child_names(CONFIG_KEYS, "gcs"))
    machines = GcpSettings.from_mapping(sections.get("gcp"))
    return GcsStore(
        project=section.text_or_none("project") or machines.project,
        key_file=section.text_or_none("credentials") or machines.credentials,
        location=section.text_or_none("location"),
        endpoint=section.url_or_none("endpoint"),
        nodes_have_role=machines.service_account is not None,
    )


def _azure(sections: Mapping[str, Any], clock: Clock) -> AzureStore:
    section = Section(sections.get("azure_blob") or {}, "azure_blob", known=child_names(CONFIG_KEYS, "azure_blob"))
    machines = AzureSettings.from_mapping(sections.get("azure"))
    account = section.text_or_none("account") or os.environ.get("AZURE_STORAGE_ACCOUNT")
    return AzureStore(
        clock,
        account=account,
        endpoint=section.url_or_none("endpoint"),
        account_key=os.environ.get("AZURE_STORAGE_KEY") if account else None,
        node_identity=machines.identity,
    )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False
