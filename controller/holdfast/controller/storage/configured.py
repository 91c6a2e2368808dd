"""The stores that a configuration sets up. What a store needs to be imported is imported when a bucket is needed."""

from __future__ import annotations

import importlib.util

from holdfast.controller.clouds.section import Section, placed
from holdfast.controller.settings import Settings
from holdfast.controller.storage.compatible import KINDS, compatible_store
from holdfast.controller.storage.s3 import S3Store
from holdfast.controller.storage.stores import LocalStore, Store


def stores_of(settings: Settings, *, buckets_on_node: str | None) -> dict[str, Store]:
    """The stores that this controller can use, by name. `buckets_on_node`: where local machines find the local buckets;
    None where there is no local cloud.

    S3 needs no section: it is used by who names a bucket there. Raises SettingsError, which names the field.
    """
    found: dict[str, Store] = {}
    if settings.local_home is not None and buckets_on_node is not None:
        found["local"] = LocalStore(settings.local_home / "local" / "buckets", root_on_node=buckets_on_node)
    if importlib.util.find_spec("boto3") is None:
        return found
    with placed(settings.home):
        found["s3"] = _s3(settings.sections.get("s3"))
        for name in KINDS:
            if name in settings.sections:
                found[name] = compatible_store(name, settings.sections[name])
    return found


def _s3(mapping: object) -> S3Store:
    section = Section({} if mapping is None else mapping, "s3", known=("endpoint", "region", "profile"))
    return S3Store(
        endpoint=section.url_or_none("endpoint"),
        region=section.text_or_none("region"),
        profile=section.text_or_none("profile"),
    )
