"""Tokens for rclone on this node: who may have one, when a new one is asked for, and what a restarted agent answers."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.agent.tokens import NoToken, Tokens


class Controller:
    """Gives a token of a new name whenever it is asked, while it is not away."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.asked: list[str] = []
        self.lasts_s = 3600.0
        self.is_away = False

    def renew(self, path: str) -> dict[str, Any]:
        if self.is_away:
            raise NoToken("nobody answers")
        self.asked.append(path)
        return self.remote(f"token-{len(self.asked)}", self.lasts_s)

    def remote(self, token: str, lasts_s: float) -> dict[str, Any]:
        return {"type": "gcs", "access_token": token, "expires_at": self.now + lasts_s}


@pytest.fixture
def controller() -> Controller:
    return Controller()


@pytest.fixture
def tokens(tmp_path: Path, controller: Controller) -> Iterator[Tokens]:
    made = Tokens(tmp_path, controller.renew, wall=lambda: controller.now)
    yield made
    made.close()


def ask(options: dict[str, Any], **changes: str) -> tuple[int, dict[str, Any]]:
    """As rclone does it."""
    form = {"grant_type": "refresh_token", "refresh_token": json.loads(options["token"])["refresh_token"], **changes}
    body = urllib.parse.urlencode(form).encode()
    try:
        with urllib.request.urlopen(options["token_url"], body, timeout=10) as answer:
            return int(answer.status), json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_the_token_of_the_spec_is_good_for_a_quarter_of_its_life(tokens: Tokens, controller: Controller) -> None:
    status, told = ask(tokens.options("/ckpt", controller.remote("first", 3600)))
    assert (status, told["access_token"], told["token_type"]) == (200, "first", "Bearer")
    assert told["expires_in"] == 900
    assert isinstance(told["expires_in"], int)
    assert controller.asked == []


def test_one_that_has_ended_is_renewed_for_its_own_mount(tokens: Tokens, controller: Controller) -> None:
    old, other = (
        tokens.options("/old", controller.remote("old", -1)),
        tokens.options("/other", controller.remote("other", 3600)),
    )
    assert [ask(old)[1]["access_token"] for _ in range(2)] == ["token-1", "token-1"]
    assert ask(other)[1]["access_token"] == "other"
    assert controller.asked == ["/old"]


def test_without_a_controller_the_old_one_serves_until_it_ends(tokens: Tokens, controller: Controller) -> None:
    options = tokens.options("/ckpt", controller.remote("old", -1))
    assert ask(options)[1]["expires_in"] == 900
    controller.is_away = True
    controller.now += 901
    assert ask(options) == (200, {"access_token": "token-1", "token_type": "Bearer", "expires_in": 60})
    controller.now += 2698
    assert ask(options)[1]["expires_in"] == 1
    controller.now += 1
    assert ask(options) == (503, {"error": "temporarily_unavailable"})
    controller.is_away = False
    assert ask(options)[1]["access_token"] == "token-2"


def test_nobody_else_is_given_one(tokens: Tokens, controller: Controller) -> None:
    options = tokens.options("/ckpt", controller.remote("first", 3600))
    assert ask(options, refresh_token="guessed")[0] == 401
    assert ask({**options, "token_url": options["token_url"] + "x"})[0] == 404


def test_the_settings_of_rclone_stay_the_same_whatever_the_token(tmp_path: Path, controller: Controller) -> None:
    """rclone names its cache after them."""
    first = Tokens(tmp_path, controller.renew, wall=lambda: controller.now)
    options = first.options("/ckpt", controller.remote("first", 3600))
    assert "first" not in json.dumps(options)
    assert options == first.options("/ckpt", controller.remote("second", 60))
    first._server.shutdown()  # type: ignore[union-attr]
    first._server.server_close()  # type: ignore[union-attr]
    second = Tokens(tmp_path, controller.renew, wall=lambda: controller.now)
    try:
        assert second.options("/ckpt", controller.remote("third", 3600)) == options
        assert ask(options)[1]["access_token"] == "third"
        assert (tmp_path / "tokens.json").stat().st_mode & 0o077 == 0
    finally:
        second.close()
    assert list(tmp_path.iterdir()) == []
