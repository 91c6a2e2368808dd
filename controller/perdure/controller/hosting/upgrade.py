"""Installs another version of Perdure on a controller's own machine. Jobs keep running: their nodes reconnect.

`upgrade` runs on the user's computer; `install_upgrade` runs in the controller, for its API.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.controller.clouds.base.protocol import Cloud, HasStoreSettings
from perdure.controller.hosting import config, installer, provision, retry
from perdure.controller.hosting.provision import Report
from perdure.controller.hosting.retry import CannotHost
from perdure.controller.runtime.clock import Clock
from perdure.sdk.connection import hosted_controller
from perdure.sdk.connection.client import Client, ConnectionLost

_LOCK = threading.Lock()
SOFTWARE_VARIABLE = "PERDURE_SOFTWARE"


def upgrade(home: Path, clock: Clock, report: Report) -> None:
    """Give the controller this version of Perdure and this computer's configuration; returns once it runs them.

    Raises CannotHost.
    """
    record = hosted_controller.load(home)
    if record is None or record.stage != hosted_controller.UP:
        raise CannotHost("no controller is up: bring one up with `perdure controller up`")
    cloud = config.hosting_cloud(home, record.cloud, record.region, clock)
    client = Client(record.endpoint)
    before = client.controller()
    renew_roles(cloud, record.role, report)
    content = config.build_bundle_for(home, cloud, record.url, record.port, record.role)
    installed = client.put_software(content)
    if not installed["is_new"]:
        report(f"The controller already runs this version of Perdure ({installed['version']}) with this configuration.")
        return
    report("Installed. The controller restarts; jobs keep running …")

    def is_back() -> bool:
        try:
            return client.controller()["started_at"] != before["started_at"]
        except ConnectionLost:
            return False

    problem = f"it does not come back at {record.url}: see its machine's log"
    retry.wait_until(is_back, provision.SERVE_TIMEOUT_S, problem)
    report(f"The controller runs version {client.controller()['version']} at {record.url}.")


def renew_roles(cloud: Cloud, role: str, report: Report) -> None:
    """Whoever upgrades may lack permissions that `up` needs. The controller then keeps the rights that it has."""
    if not isinstance(cloud, HasStoreSettings):
        return
    try:
        retry.call_once("giving the controller's role what this version needs", cloud, lambda: cloud.renew_roles(role))
    except CannotHost as problem:
        report(f"Warning: {problem}. The upgrade goes on with the rights that the controller has.")


def software_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder in which the installer keeps this daemon's software; None if no installer runs this daemon."""
    folder = environ.get(SOFTWARE_VARIABLE)
    return Path(folder) if folder else None


def install_upgrade(home: Path, software: Path, bundle: bytes) -> dict[str, Any]:
    """Install a bundle, which runs from the next start on. Returns {"version", "is_new"}.

    Raises installer.CannotInstall.
    """
    with _LOCK:
        return _install(home, software, bundle)


def _install(home: Path, software: Path, bundle: bytes) -> dict[str, Any]:
    before = _state(home, software)
    with tempfile.NamedTemporaryFile(dir=software, prefix=".bundle-") as file:
        file.write(bundle)
        file.flush()
        credentials = installer.install(str(home), file.name)
    return {"version": credentials["version"], "is_new": _state(home, software) != before}


def _state(home: Path, software: Path) -> tuple[str, bytes]:
    return os.path.realpath(software / "current"), (home / "config.yaml").read_bytes()
