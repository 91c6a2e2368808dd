"""The script that mounts a controller's state, with a real disk: one that holds something is never formatted."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.controller.hosting import cloud_config

SCRIPT = cloud_config.HERE / "mount_state.sh"
TOOLS = ("losetup", "unshare", "mkfs.ext4", "blkid", "mountpoint")
Mounting = Callable[[str], subprocess.CompletedProcess[str]]

# In a mount namespace of its own, with a user `perdure` and an fstab that are not this computer's.
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
        pytest.skip(f"no loop device is to be had: {made.stderr.strip()}")
    yield made.stdout.strip()
    subprocess.run(["losetup", "-d", made.stdout.strip()], check=True)


@pytest.fixture
def mounting(tmp_path: Path, device: str) -> Mounting:
    for name, line in (("passwd", "perdure:x:4242:4242::/:/bin/sh"), ("group", "perdure:x:4242:"), ("fstab", "")):
        (tmp_path / name).write_text(f"{line}\n")

    def call(after: str) -> subprocess.CompletedProcess[str]:
        """Mount it, and do `after` while it is mounted."""
        environ = {**os.environ, "FOLDER": str(tmp_path), "SCRIPT": str(SCRIPT), "DEVICE": device}
        command = ["unshare", "--mount", "sh", "-c", WITHIN + after]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    return call


def test_a_blank_disk_is_formatted_and_one_with_state_is_kept(mounting: Mounting, tmp_path: Path) -> None:
    done = mounting('echo kept > "$FOLDER/state/perdure.db"; stat -c "%u %a" "$FOLDER/state"')
    assert (done.returncode, done.stdout) == (0, "4242 700\n"), done.stderr
    done = mounting('cat "$FOLDER/state/perdure.db"; "$SCRIPT" "$DEVICE" "$FOLDER/state"; cat /etc/fstab')
    assert done.returncode == 0, done.stderr
    kept, *lines = done.stdout.splitlines()
    assert kept == "kept"
    assert [line.split()[:3] for line in lines if line] == [["LABEL=perdure-state", str(tmp_path / "state"), "ext4"]]


def test_what_is_not_blank_is_never_formatted(mounting: Mounting, tmp_path: Path, device: str) -> None:
    subprocess.run(["mkswap", device], check=True, capture_output=True)
    before = (tmp_path / "disk").read_bytes()
    done = mounting("true")
    assert done.returncode != 0
    assert (tmp_path / "disk").read_bytes() == before
