"""Sign-ins are kept for their own address, privately, until they expire."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from perdure.sdk.connection import discovery
from perdure.sdk.connection.endpoint import NoController
from perdure.sdk.files import logins
from perdure.sdk.files.logins import Login

URL = "https://perdure.lan:8443"
LATE = datetime(2030, 1, 1, tzinfo=UTC)


def login(expires_at: str | None = "2029-12-31T00:00:00Z") -> Login:
    return Login(token="pds_x", user="ada", expires_at=expires_at)


def test_login__is_used_for_its_own_address(tmp_path: Path) -> None:
    home = tmp_path / "home"
    logins.store(home, URL, login("2999-01-01T00:00:00Z"))
    environ = {"PERDURE_HOME": str(home), "PERDURE_ENDPOINT": URL + "/"}
    found = discovery.find(environ)
    assert found is not None
    assert (found.url, found.token) == (URL, "pds_x")
    assert (home / "logins.json").stat().st_mode & 0o777 == 0o600
    with pytest.raises(NoController, match="there is no token"):
        discovery.find({**environ, "PERDURE_ENDPOINT": "https://other.lan"})
    given = discovery.find({**environ, "PERDURE_TOKEN": "pdu_y"})
    assert given is not None
    assert given.token == "pdu_y"
    assert logins.remove(home, URL)
    assert not logins.remove(home, URL)
    with pytest.raises(NoController, match="there is no token"):
        discovery.find(environ)


def test_login__that_has_expired_says_what_to_do(tmp_path: Path) -> None:
    logins.store(tmp_path / "home", URL, login())
    with pytest.raises(NoController, match="as ada has expired") as error:
        logins.token_for(tmp_path / "home", URL, LATE)
    assert error.value.fix == f"run: perdure login {URL}"
    logins.store(tmp_path / "home", URL, login(None))
    assert logins.token_for(tmp_path / "home", URL, LATE) == "pds_x"


def test_logins__that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "logins.json").write_text('{"https://perdure.lan:8443": 1}')
    with pytest.raises(NoController, match="cannot be read"):
        logins.token_for(tmp_path, URL)


@pytest.mark.parametrize("expires_at", ["never", "2030-01-01T00:00:00", "", 5, True, []])
def test_login__with_an_end_that_is_no_time_is_an_error(tmp_path: Path, expires_at: object) -> None:
    wrong = {**login(), "expires_at": expires_at}
    (tmp_path / "logins.json").write_text(json.dumps({URL: wrong}))
    with pytest.raises(NoController, match="cannot be read") as error:
        logins.token_for(tmp_path, URL)
    assert error.value.fix is not None
    assert "sign in again" in error.value.fix
    with pytest.raises(ValueError, match="no time"):
        logins.checked(wrong)


def test_logins__of_several_commands_at_once_are_all_kept(tmp_path: Path) -> None:
    urls = [f"https://c{number}.lan" for number in range(16)]
    with ThreadPoolExecutor(len(urls)) as pool:
        list(pool.map(lambda url: logins.store(tmp_path, url, login(None)), urls))
        assert [logins.token_for(tmp_path, url) for url in urls] == ["pds_x"] * len(urls)
        assert all(pool.map(lambda url: logins.remove(tmp_path, url), urls))
    assert [logins.token_for(tmp_path, url) for url in urls] == [None] * len(urls)
    assert (tmp_path / "logins.lock").stat().st_mode & 0o777 == 0o600


def test_unauthenticated__needs_an_address(tmp_path: Path) -> None:
    assert discovery.unauthenticated({"PERDURE_ENDPOINT": URL}).token == ""
    with pytest.raises(NoController, match="which controller"):
        discovery.unauthenticated({"PERDURE_HOME": str(tmp_path)})
