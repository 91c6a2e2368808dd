"""What a controller on a machine of its own is told, and where it finds its state: one answer per cloud.

Its configuration is the user's own config.yaml, less what is about this computer alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perdure.controller.clock import Clock
from perdure.controller.clouds.base import Cloud, Disk, Hosting
from perdure.controller.clouds.local.cloud import LocalCloud
from perdure.controller.clouds.registry import Absent, enabled_clouds
from perdure.controller.hosting import asking, packing
from perdure.controller.settings import ConfigFile, SettingsError, read_settings

STATE = "/var/lib/perdure"
_OWN = ("listen", "database", "keyring", "local")
_CREDENTIALS = ("profile", "credentials")  # which lie on this computer: the machine has a role
_EXTRAS = "controller,aws,gcp,azure"
# Of buckets that are only named: those of the cloud where the controller is.
_STORES = {"aws": "s3", "gcp": "gcs", "azure": "azure"}


def cloud_of(home: Path, name: str, region: str | None, clock: Clock) -> Cloud:
    """The cloud that is to have the machine, as `home` configures it. Raises SettingsError if it can have none."""
    settings = read_settings(home)
    sections = dict(settings.sections)
    if region is not None and isinstance(sections.get(name), dict) and name != "local":
        sections[name] = {**sections[name], "regions": [region]}
    clouds = enabled_clouds(sections, home, clock, local_home=settings.local_home)
    cloud = clouds.get(name)
    if cloud is None or not isinstance(cloud, Hosting | Absent):
        raise SettingsError(f"--infra: `controller up` can not use {name} yet: use local, aws, gcp or azure")
    if why := cloud.unusable():
        raise SettingsError(f"--infra: {name} can not be used: {why}")
    return cloud


def home_of(cloud: str, disk: Disk) -> str:
    return disk.id if cloud == "local" else STATE


def home_on_machine(disk: Disk, cloud: Cloud) -> str:
    return home_of(cloud.name, disk)


def host_of(cloud: str) -> str:
    """Where it listens. Machines of the local cloud share this computer's addresses."""
    return "127.0.0.1" if cloud == "local" else "0.0.0.0"


def packed(home: Path, cloud: Cloud, url: str, port: int) -> bytes:
    """The pack for a controller that is called by `url`. Raises SettingsError."""
    settings = read_settings(home)
    own = {name: value for name, value in ConfigFile.of(home).data.items() if name not in _OWN}
    listen: dict[str, Any] = {"host": host_of(cloud.name), "port": port, "tls": "auto"}
    if isinstance(cloud, LocalCloud):
        local = settings.sections.get("local")
        # Found out here: machines that a machine has started lie beside it, where it can not look.
        apart = {"directory": str(settings.local_home or home), "isolation": cloud.isolation()}
        config = {"listen": listen, **own, "local": {**(local if isinstance(local, dict) else {}), **apart}}
        return packing.pack(config, dependencies="host")
    for name, section in own.items():
        if isinstance(section, dict):
            own[name] = {field: value for field, value in section.items() if field not in _CREDENTIALS}
    own[cloud.name] = {**asking.hosting(cloud).found_here(), **(own.get(cloud.name) or {})}
    config = {"listen": {**listen, "advertise": url}, "default_store": _STORES[cloud.name], **own, "local": False}
    return packing.pack(config, dependencies="index", extras=_EXTRAS)
