"""Trades the token with which a machine boots for the attempt's token, once.

Others may read what a machine boots with. So that token gives access to the agent's program alone. Who trades it first
gets the attempt's token; a second one is noticed by the controller, which replaces the machine.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path

from perdure.agent.link.channel import Backoff
from perdure.agent.link.client import ControllerClient, Unreachable
from perdure.agent.state_file import read_json, write_json

BOOT_FORMAT = "pdb1."


def is_boot_token(token: str) -> bool:
    return token.startswith(BOOT_FORMAT)


def trade(client: ControllerClient, record: Path, *, timeout_s: float, log: Callable[[str], None]) -> str | None:
    """The attempt's token. None if no answer comes in time.

    `record`: a file that outlives the agent. It has the nonce before the first call: a call whose answer is lost is
    repeated with the same one. Raises TokenRevoked, ControllerRejected, OSError.
    """
    stored = read_json(record) or {}
    if "token" in stored:
        return str(stored["token"])
    nonce = str(stored.get("nonce") or secrets.token_hex(32))
    write_json(record, {"nonce": nonce})
    backoff, give_up_at, last_error = Backoff(), time.monotonic() + timeout_s, ""
    while time.monotonic() < give_up_at:
        try:
            token = client.trade_token(nonce)
        except Unreachable as error:
            if str(error) != last_error:
                log(f"no token yet: {error}")
            last_error = str(error)
            time.sleep(backoff.wait_s())
            continue
        write_json(record, {"nonce": nonce, "token": token})
        return token
    return None
