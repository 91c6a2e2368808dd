"""The reference of config.yaml: every key of every section, with type, default, unit and meaning.

The documentation is generated from it. The readers of the sections accept exactly these keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from perdure.controller.runtime.config.config_key import ConfigKey
from perdure.controller.runtime.config.settings import SETTINGS_KEYS

# Modules are imported by name, on demand, since they are built on this package. These describe the keys of their own
# sections in CONFIG_KEYS; the descriptors of clouds return theirs.
_PROBES = "perdure.controller.maintenance.offer_probes"
_BACKUP = "perdure.controller.maintenance.backup_schedule"
_NOTIFY = "perdure.controller.runtime.config.notify_config"
_ACME = "perdure.controller.runtime.config.acme_config"
_OIDC = "perdure.controller.runtime.config.oidc_config"
_CLUSTERS = "perdure.controller.runtime.config.clusters_config"
_CLOUDS = "perdure.controller.clouds.registry"
_STORES = "perdure.controller.buckets.configured"


def config_keys() -> Iterator[ConfigKey]:
    """Every key, section by section."""
    yield from SETTINGS_KEYS
    yield from import_module(_PROBES).CONFIG_KEYS
    yield from import_module(_BACKUP).CONFIG_KEYS
    yield from import_module(_NOTIFY).CONFIG_KEYS
    yield from import_module(_ACME).CONFIG_KEYS
    yield from import_module(_OIDC).CONFIG_KEYS
    yield from import_module(_CLUSTERS).CONFIG_KEYS
    for descriptor in import_module(_CLOUDS).descriptors().values():
        yield from descriptor.config_keys()
    yield from import_module(_STORES).CONFIG_KEYS
