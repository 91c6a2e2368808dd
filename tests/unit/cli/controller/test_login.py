"""`perdure login`: what it does with the answer of the controller."""

from __future__ import annotations

import pytest

from perdure.cli.controller.browser_code import BrowserCode
from unit.cli.commands import RunPerdure
from unit.sdk.contract_server import SIGN_IN, Controller


def test_login__shows_the_texts_of_the_controller_as_text(
    perdure: RunPerdure, server: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BrowserCode, "wait", lambda _: "code")
    server.answers[SIGN_IN] = {"token": "pds_x", "user": "ada\x1b[2J", "expires_at": None}
    result = perdure("login", server.url, "--no-browser")
    assert result.exit_code == 0, result.output
    assert "as ada\\x1b[2J." in result.output
