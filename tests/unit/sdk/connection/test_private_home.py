"""Taking other users' access to a home away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.sdk.connection.endpoint import NoController
from perdure.sdk.connection.private_home import make_private


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_new_home__is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_private(tmp_path / "a" / "home")
    finally:
        os.umask(before)
    assert mode(tmp_path / "a" / "home") == 0o700


@pytest.mark.parametrize("name", ["config.yaml", "perdure.db", "secret.key", "token", "controller.json", "hosted.json"])
def test_existing_home__loses_access_of_others_with_all_its_files(tmp_path: Path, name: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    files = [home / name, home / "perdure.db-wal", home / "controller.log.1"]
    for path in files:
        path.touch()
        path.chmod(0o664)
    outside = tmp_path / "outside"
    outside.touch()
    outside.chmod(0o644)
    (home / "link").symlink_to(outside)
    home.chmod(0o2775)
    for _ in range(2):
        make_private(home)
        assert {mode(path) for path in files} == {0o600}
        assert mode(home) & 0o777 == 0o700
    assert mode(outside) == 0o644, "what a link leads to is not the home's"


def test_empty_folder__becomes_a_private_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "lost+found").mkdir()
    home.chmod(0o755)
    make_private(home)
    assert mode(home) == 0o700


def test_folder_of_other_programs__is_refused_and_kept(tmp_path: Path) -> None:
    """PERDURE_HOME=/srv, with a slip of the pen: nobody else could use the folder any more."""
    home = tmp_path / "srv"
    home.mkdir()
    (home / "www").mkdir()
    home.chmod(0o755)
    with pytest.raises(NoController, match="holds no controller but www") as caught:
        make_private(home)
    assert caught.value.where == str(home)
    assert mode(home) == 0o755
    home.chmod(0o700)
    make_private(home)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_folder_of_another_user__is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # other users may not enter the folders above
    home = Path("home")
    home.mkdir()
    (home / "config.yaml").touch()
    home.chmod(0o777)
    tmp_path.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(NoController, match="it is not yours"):
            make_private(home)
    finally:
        os.seteuid(0)
