"""The user data of a controller's virtual machine: it mounts the state's disk and runs the caretaker under systemd."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path

import yaml

HERE = Path(__file__).parent
CARETAKER = "/opt/perdure/caretaker.py"
MOUNT = "/opt/perdure/mount_state.sh"
UNIT = "/etc/systemd/system/perdure-controller.service"
_STARTS = "ExecStart=/opt/perdure/bin/python -m perdure.controller serve --home /var/lib/perdure"


def cloud_config(program: str, *, home: str, device: str) -> str:
    """A few kilobytes: EC2 takes 16 KiB. `program`: the caretaker, told what it needs; nobody but it may read it."""
    files = [
        _file(CARETAKER, program, owner="perdure:perdure", permissions="0400"),
        _file(MOUNT, (HERE / "mount_state.sh").read_text(), permissions="0755"),
        _file(UNIT, unit(), permissions="0644"),
    ]
    told = {
        "users": [
            {"name": "perdure", "system": True, "homedir": home, "no_create_home": True, "shell": "/usr/sbin/nologin"}
        ],
        "package_update": True,
        "packages": ["python3", "python3-venv"],
        "write_files": files,
        "runcmd": [[MOUNT, device, home], ["systemctl", "enable", "--now", "perdure-controller"]],
    }
    return "#cloud-config\n" + yaml.safe_dump(told, sort_keys=False)


def unit() -> str:
    """The unit of deploy/systemd, which runs the caretaker in place of the daemon, and only with the disk."""
    text = (HERE / "perdure-controller.service").read_text()
    assert _STARTS in text
    text = text.replace(_STARTS, f"ExecStart=/usr/bin/python3 {CARETAKER}")
    with_disk = "RequiresMountsFor=/var/lib/perdure\nConditionPathIsMountPoint=/var/lib/perdure\n"
    return text.replace("\n[Service]\n", f"{with_disk}\n[Service]\n")


def _file(path: str, content: str, **more: str) -> dict[str, object]:
    """Written when the users are there (`defer`), packed, since there is little room."""
    packed = base64.b64encode(gzip.compress(content.encode(), mtime=0)).decode()
    return {"path": path, "encoding": "gz+b64", "content": packed, "defer": True, **more}
