"""The configuration and the state folder of a controller on a machine of its own, by cloud.

Its config.yaml is the user's own, without what applies only to this computer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.controller.clouds import registry
from perdure.controller.clouds.base.protocol import Cloud, Disk, HasStoreSettings, Hosting
from perdure.controller.clouds.registry import UnavailableCloud, build_clouds
from perdure.controller.hosting import bundle, retry
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.config.config_file import ConfigFile, SettingsError
from perdure.controller.runtime.config.settings import read_settings

STATE_DIRECTORY = "/var/lib/perdure"
_LOCAL_SECTIONS = ("listen", "database", "keyring", "local")
_CREDENTIALS = ("profile", "credentials")  # on this computer only: the machine has a role
_CHOSEN_KEYS = {"endpoint", "node_role", "share_keys"}  # of a store's section: how nodes use it is the user's choice


def hosting_cloud(home: Path, name: str, region: str | None, clock: Clock) -> Cloud:
    """The cloud that will host the machine, as `home` configures it. Raises SettingsError if it cannot."""
    settings = read_settings(home)
    sections = dict(settings.sections)
    has_regions = registry.hosting_support(name) is not None and not shares_computer(name)
    if region is not None and isinstance(sections.get(name), dict) and has_regions:
        sections[name] = {**sections[name], "regions": [region]}
    clouds = build_clouds(sections, home, clock, local_home=settings.local_home)
    cloud = clouds.get(name)
    if cloud is None or not isinstance(cloud, Hosting | UnavailableCloud):
        usable = [other for other, descriptor in registry.descriptors().items() if descriptor.hosting]
        raise SettingsError(f"--infra: `controller up` cannot use {name} yet: use one of {', '.join(usable)}")
    if why := cloud.unusable():
        raise SettingsError(f"--infra: {name} cannot be used: {why}")
    return cloud


def home_directory(cloud: str, disk: Disk) -> str:
    """PERDURE_HOME of the controller on its machine."""
    return disk.id if shares_computer(cloud) else STATE_DIRECTORY


def home_on_machine(disk: Disk, cloud: Cloud) -> str:
    return home_directory(cloud.name, disk)


def listen_host(cloud: str) -> str:
    """The address on which it listens."""
    return "127.0.0.1" if shares_computer(cloud) else "0.0.0.0"


def shares_computer(cloud: str) -> bool:
    """Whether the cloud's machines share this computer's network and files."""
    hosting = registry.hosting_support(cloud)
    return hosting is not None and hosting.shares_computer


def build_bundle_for(home: Path, cloud: Cloud, url: str, port: int, role: str) -> bytes:
    """The bundle for a controller that clients reach at `url`, on a machine with `role`.

    Raises SettingsError, CannotHost.
    """
    settings = read_settings(home)
    own = {name: value for name, value in ConfigFile.load(home).data.items() if name not in _LOCAL_SECTIONS}
    listen: dict[str, Any] = {"host": listen_host(cloud.name), "port": port, "tls": "auto"}
    section = settings.sections.get(cloud.name)
    in_force = retry.require_hosting(cloud).environment_settings()
    own[cloud.name] = {**(section if isinstance(section, dict) else {}), **in_force}
    if shares_computer(cloud.name):
        return bundle.build_bundle({"listen": listen, **own}, dependencies="host")
    for name, section in own.items():
        if isinstance(section, dict):
            own[name] = {field: value for field, value in section.items() if field not in _CREDENTIALS}
    hosting = registry.hosting_support(cloud.name)
    store = {"default_store": hosting.default_store} if hosting and hosting.default_store else {}
    own |= _store_sections(cloud, role, own)
    config = {"listen": {**listen, "advertise": url}, **store, **own, "local": False}
    extras = [descriptor.extra for descriptor in registry.descriptors().values() if descriptor.extra]
    return bundle.build_bundle(config, dependencies="index", extras=",".join(["controller", *extras]))


def _store_sections(cloud: Cloud, role: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of stores with what the cloud adds. One in which the user has chosen otherwise stays as it is."""
    if not isinstance(cloud, HasStoreSettings):
        return {}
    settings = retry.call_once("looking up the role of nodes", cloud, lambda: cloud.store_settings(role))
    sections = {}
    for name, fields in settings.items():
        section = own.get(name) or {}
        if isinstance(section, dict) and not section.keys() & _CHOSEN_KEYS:
            sections[name] = {**section, **fields}
    return sections
