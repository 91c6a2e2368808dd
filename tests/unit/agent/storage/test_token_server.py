"""Tokens for rclone on this node: who gets one, when it is renewed, and how a restarted agent serves it."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.agent.storage.token_server import TokenServer, TokenUnavailable
from support.helpers.timing import scaled


class ControllerClient:
    """Returns a token with a new name at every request, unless it is away."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.since_boot = 5000.0
        self.asked: list[str] = []
        self.lasts_s = 3600.0
        self.is_away = False

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.since_boot += seconds

    def renew(self, path: str) -> dict[str, Any]:
        if self.is_away:
            raise TokenUnavailable("no controller answers")
        self.asked.append(path)
        return self.remote(f"token-{len(self.asked)}", self.lasts_s)

    def remote(self, token: str, lasts_s: float) -> dict[str, Any]:
        return {"type": "gcs", "access_token": token, "expires_at": self.now + lasts_s}


@pytest.fixture
def controller() -> ControllerClient:
    return ControllerClient()


@pytest.fixture
def tokens(tmp_path: Path, controller: ControllerClient) -> Iterator[TokenServer]:
    made = TokenServer(
        tmp_path, controller.renew, wall_clock=lambda: controller.now, since_boot=lambda: controller.since_boot
    )
    yield made
    made.close()


def ask(options: dict[str, Any], **changes: str) -> tuple[int, dict[str, Any]]:
    """Request a token as rclone does."""
    form = {"grant_type": "refresh_token", "refresh_token": json.loads(options["token"])["refresh_token"], **changes}
    body = urllib.parse.urlencode(form).encode()
    try:
        with urllib.request.urlopen(options["token_url"], body, timeout=scaled(10)) as answer:
            return int(answer.status), json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_token__of_the_spec_serves_for_a_quarter_of_its_life(tokens: TokenServer, controller: ControllerClient) -> None:
    status, payload = ask(tokens.options("/ckpt", controller.remote("first", 3600)))
    assert (status, payload["access_token"], payload["token_type"]) == (200, "first", "Bearer")
    assert payload["expires_in"] == 900
    assert isinstance(payload["expires_in"], int)
    assert controller.asked == []


def test_token__is_renewed_for_its_own_mount(tokens: TokenServer, controller: ControllerClient) -> None:
    old, other = (
        tokens.options("/old", controller.remote("old", -1)),
        tokens.options("/other", controller.remote("other", 3600)),
    )
    assert [ask(old)[1]["access_token"] for _ in range(2)] == ["token-1", "token-1"]
    assert ask(other)[1]["access_token"] == "other"
    assert controller.asked == ["/old"]


def test_token__serves_until_it_expires_without_a_controller(tokens: TokenServer, controller: ControllerClient) -> None:
    options = tokens.options("/ckpt", controller.remote("old", -1))
    assert ask(options)[1]["expires_in"] == 900
    controller.is_away = True
    controller.advance(901)
    assert ask(options) == (200, {"access_token": "token-1", "token_type": "Bearer", "expires_in": 60})
    controller.advance(2698)
    assert ask(options)[1]["expires_in"] == 1
    controller.advance(1)
    assert ask(options) == (503, {"error": "temporarily_unavailable"})
    controller.is_away = False
    assert ask(options)[1]["access_token"] == "token-2"


@pytest.mark.parametrize("step_s", [-86_400, 86_400])
def test_token__lives_as_long_if_the_wall_clock_is_set(
    tokens: TokenServer, controller: ControllerClient, step_s: float
) -> None:
    options = tokens.options("/ckpt", controller.remote("first", 3600))
    controller.is_away = True
    controller.now += step_s
    assert ask(options)[1]["expires_in"] == 900
    controller.advance(3599)
    assert ask(options)[1]["access_token"] == "first"
    controller.advance(1)
    assert ask(options)[0] == 503


def test_token__is_not_given_to_strangers(tokens: TokenServer, controller: ControllerClient) -> None:
    options = tokens.options("/ckpt", controller.remote("first", 3600))
    assert ask(options, refresh_token="guessed")[0] == 401
    assert ask({**options, "token_url": options["token_url"] + "x"})[0] == 404


def test_options__are_the_same_for_every_token(tmp_path: Path, controller: ControllerClient) -> None:
    """rclone names its cache after them."""
    first = TokenServer(
        tmp_path, controller.renew, wall_clock=lambda: controller.now, since_boot=lambda: controller.since_boot
    )
    options = first.options("/ckpt", controller.remote("first", 3600))
    assert "first" not in json.dumps(options)
    assert options == first.options("/ckpt", controller.remote("second", 60))
    first._server.shutdown()  # type: ignore[union-attr]
    first._server.server_close()  # type: ignore[union-attr]
    second = TokenServer(
        tmp_path, controller.renew, wall_clock=lambda: controller.now, since_boot=lambda: controller.since_boot
    )
    try:
        assert second.options("/ckpt", controller.remote("third", 3600)) == options
        assert ask(options)[1]["access_token"] == "third"
        assert (tmp_path / "tokens.json").stat().st_mode & 0o077 == 0
    finally:
        second.close()
    assert list(tmp_path.iterdir()) == []
