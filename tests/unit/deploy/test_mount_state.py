"""The script that mounts a controller's state, on a real disk. It never formats a disk that is not blank."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.controller.clouds.bootstrap import cloud_config

SCRIPT = cloud_config.HERE / "mount_state.sh"
TOOLS = ("losetup", "unshare", "mkfs.ext4", "blkid", "mountpoint")
Mounting = Callable[[str], subprocess.CompletedProcess[str]]

# In its own mount namespace, with its own user `perdure` and fstab.
WITHIN = """
set -eu
mount --bind "$FOLDER/passwd" /etc/passwd; mount --bind "$FOLDER/group" /etc/group
mount --bind "$FOLDER/fstab" /etc/fstab
"$SCRIPT" "$DEVICE" "$FOLDER/state"
"""


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    if os.geteuid() != 0 or not all(map(shutil.which, TOOLS)):
        pytest.skip(f"needs root, and {', '.join(TOOLS)}")
    with open(tmp_path / "disk", "wb") as disk:
        disk.truncate(16 * 2**20)
    made = subprocess.run(["losetup", "-f", "--show", tmp_path / "disk"], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no loop device is available: {made.stderr.strip()}")
    yield made.stdout.strip()
    subprocess.run(["losetup", "-d", made.stdout.strip()], check=True)


@pytest.fixture
def mounting(tmp_path: Path, device: str) -> Mounting:
    for name, line in (("passwd", "perdure:x:4242:4242::/:/bin/sh"), ("group", "perdure:x:4242:"), ("fstab", "")):
        (tmp_path / name).write_text(f"{line}\n")

    def call(after: str) -> subprocess.CompletedProcess[str]:
        """Mount the disk, and run `after` while it is mounted."""
        environ = {**os.environ, "FOLDER": str(tmp_path), "SCRIPT": str(SCRIPT), "DEVICE": device}
        command = ["unshare", "--mount", "sh", "-c", WITHIN + after]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    return call


def test_mount_state__formats_a_blank_disk_and_keeps_one_with_state(mounting: Mounting, tmp_path: Path) -> None:
    done = mounting('echo kept > "$FOLDER/state/perdure.db"; stat -c "%u %a" "$FOLDER/state"')
    assert (done.returncode, done.stdout) == (0, "4242 700\n"), done.stderr
    done = mounting('cat "$FOLDER/state/perdure.db"; "$SCRIPT" "$DEVICE" "$FOLDER/state"; cat /etc/fstab')
    assert done.returncode == 0, done.stderr
    content, *lines = done.stdout.splitlines()
    assert content == "kept"
    assert [line.split()[:3] for line in lines if line] == [["LABEL=perdure-state", str(tmp_path / "state"), "ext4"]]


def test_mount_state__never_formats_a_disk_that_is_not_blank(mounting: Mounting, tmp_path: Path, device: str) -> None:
    subprocess.run(["mkswap", device], check=True, capture_output=True)
    before = (tmp_path / "disk").read_bytes()
    done = mounting("true")
    assert done.returncode != 0
    assert (tmp_path / "disk").read_bytes() == before
