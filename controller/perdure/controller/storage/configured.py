"""The stores that a configuration sets up. What a store needs to be imported is imported when a bucket is needed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from typing import Any

from perdure.controller.clock import Clock, SystemClock
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.clouds.section import Section, placed
from perdure.controller.settings import Settings
from perdure.controller.storage.azure import AzureStore
from perdure.controller.storage.compatible import KINDS, compatible_store
from perdure.controller.storage.gcs import GcsStore
from perdure.controller.storage.s3 import S3Store
from perdure.controller.storage.stores import LocalStore, Store


def stores_of(settings: Settings, *, buckets_on_node: str | None, clock: Clock | None = None) -> dict[str, Store]:
    """The stores that this controller can use, by name. `buckets_on_node`: where local machines find the local buckets;
    None where there is no local cloud. `clock`: the world's time; None: this computer's.

    S3, Google and Azure need no section: they are used by who names a bucket there. Raises SettingsError, which names
    the field.
    """
    found: dict[str, Store] = {}
    if settings.local_home is not None and buckets_on_node is not None:
        found["local"] = LocalStore(settings.local_home / "local" / "buckets", root_on_node=buckets_on_node)
    with placed(settings.home):
        if _is_installed("boto3"):
            found["s3"] = _s3(settings.sections.get("s3"))
            for name in KINDS:
                if name in settings.sections:
                    found[name] = compatible_store(name, settings.sections[name])
        if _is_installed("google.auth"):
            found["gcs"] = _gcs(settings.sections)
        if _is_installed("azure.storage.blob"):
            found["azure"] = _azure(settings.sections, clock or SystemClock())
    return found


def account_of(stores: Mapping[str, Store]) -> str | None:
    """The storage account of Azure's containers that are only named."""
    azure = stores.get("azure")
    return azure.account if isinstance(azure, AzureStore) else None


def _s3(mapping: object) -> S3Store:
    section = Section({} if mapping is None else mapping, "s3", known=("endpoint", "region", "profile"))
    return S3Store(
        endpoint=section.url_or_none("endpoint"),
        region=section.text_or_none("region"),
        profile=section.text_or_none("profile"),
    )


def _gcs(sections: Mapping[str, Any]) -> GcsStore:
    """The project and the credentials are those of the machines, where they have no others."""
    section = Section(sections.get("gcs") or {}, "gcs", known=("project", "credentials", "location", "endpoint"))
    machines = GcpSettings.from_mapping(sections.get("gcp"))
    return GcsStore(
        project=section.text_or_none("project") or machines.project,
        key_file=section.text_or_none("credentials") or machines.credentials,
        location=section.text_or_none("location"),
        endpoint=section.url_or_none("endpoint"),
        nodes_have_role=machines.service_account is not None,
    )


def _azure(sections: Mapping[str, Any], clock: Clock) -> AzureStore:
    section = Section(sections.get("azure_blob") or {}, "azure_blob", known=("account", "endpoint"))
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
    except ModuleNotFoundError:  # the package above it
        return False
