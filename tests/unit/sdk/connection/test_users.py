"""What a controller sends when a command line signs in."""

from __future__ import annotations

import pytest

from perdure.sdk.connection.client import Client
from perdure.sdk.connection.responses import NotAController
from perdure.sdk.connection.users import redeem_command_line_code
from unit.sdk.contract_server import Controller

PATH = "/api/v1/session/command-line/token"


def test_redeem__rejects_a_sign_in_that_would_break_later_commands(client: Client, controller: Controller) -> None:
    sent = {"token": "pds_x", "user": "ada"}
    controller.answers[PATH] = {**sent, "expires_at": "2999-01-01T00:00:00Z"}
    assert redeem_command_line_code(client, "code", "secret")["user"] == "ada"
    for wrong in ({"expires_at": "never"}, {"expires_at": 5}, {"expires_at": None, "token": 1}):
        controller.answers[PATH] = {**sent, **wrong}
        with pytest.raises(NotAController, match="a sign-in that is not valid"):
            redeem_command_line_code(client, "code", "secret")
