"""The ssh host key of a job."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.controller.runtime.security.host_keys import derive_host_key
from perdure.controller.runtime.security.keyring import Keyring

KEYRING = Keyring(b"k" * 32, "token")


def test_host_key__is_the_same_for_a_job_and_differs_for_others() -> None:
    key = derive_host_key(KEYRING, "controller", "7")
    assert derive_host_key(KEYRING, "controller", "7").public == key.public
    assert derive_host_key(replace(KEYRING, user_token="other"), "controller", "7").public == key.public
    others = [
        derive_host_key(KEYRING, "controller", "8"),
        derive_host_key(KEYRING, "other", "7"),
        derive_host_key(replace(KEYRING, key=b"j" * 32), "controller", "7"),
    ]
    assert len({key.public, *(other.public for other in others)}) == 4
    assert "PRIVATE" not in repr(key)


def test_host_key__is_one_that_openssh_accepts(tmp_path: Path) -> None:
    key = derive_host_key(KEYRING, "controller", "7")
    (tmp_path / "key").write_text(key.private)
    (tmp_path / "key").chmod(0o600)
    try:
        shown = subprocess.run(
            ["ssh-keygen", "-y", "-f", tmp_path / "key"], capture_output=True, text=True, check=True
        ).stdout
    except FileNotFoundError:
        pytest.skip("ssh-keygen is missing: scripts/ensure-ssh.sh")
    assert shown.split()[:2] == key.public.split()
