"""The user data of a controller's virtual machine: mounts the state's disk and runs the installer under systemd."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path

import yaml

HERE = Path(__file__).parent
INSTALLER = "/opt/perdure/installer.py"
MOUNT = "/opt/perdure/mount_state.sh"
UNIT = "/etc/systemd/system/perdure-controller.service"
_EXEC_START = "ExecStart=/opt/perdure/bin/python -m perdure.controller serve --home /var/lib/perdure"


def render_cloud_config(program: str, *, home: str, device: str) -> str:
    """Render the user data, a few kilobytes (EC2's limit is 16 KiB).

    `program`: the installer with its settings, readable only by its own user. `home`: where the state is mounted.
    `device`: the path of the state's disk.
    """
    files = [
        _file(INSTALLER, program, owner="perdure:perdure", permissions="0400"),
        _file(MOUNT, (HERE / "mount_state.sh").read_text(), permissions="0755"),
        _file(UNIT, render_unit(), permissions="0644"),
    ]
    config = {
        "users": [
            {"name": "perdure", "system": True, "homedir": home, "no_create_home": True, "shell": "/usr/sbin/nologin"}
        ],
        "package_update": True,
        "packages": ["python3", "python3-venv"],
        "write_files": files,
        "runcmd": [[MOUNT, device, home], ["systemctl", "enable", "--now", "perdure-controller"]],
    }
    return "#cloud-config\n" + yaml.safe_dump(config, sort_keys=False)


def render_unit() -> str:
    """The unit of deploy/systemd, changed to run the installer instead of the daemon, if the disk is mounted."""
    text = (HERE / "perdure-controller.service").read_text()
    assert _EXEC_START in text
    text = text.replace(_EXEC_START, f"ExecStart=/usr/bin/python3 {INSTALLER}")
    with_disk = "RequiresMountsFor=/var/lib/perdure\nConditionPathIsMountPoint=/var/lib/perdure\n"
    return text.replace("\n[Service]\n", f"{with_disk}\n[Service]\n")


def _file(path: str, content: str, **more: str) -> dict[str, object]:
    """A file written after users are created (`defer`). Compressed, since user data is limited."""
    packed = base64.b64encode(gzip.compress(content.encode(), mtime=0)).decode()
    return {"path": path, "encoding": "gz+b64", "content": packed, "defer": True, **more}
