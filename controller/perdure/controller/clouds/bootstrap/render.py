"""Fills in the settings of the first program of a new machine (`boot.py`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from perdure.controller.clouds.base.protocol import Bootstrap

_BOOT = Path(__file__).with_name("boot.py")
_INIT = Path(__file__).with_name("init.py")
_UNIT = Path(__file__).with_name("perdure-agent.service")
_SETTINGS_PLACEHOLDER = "SETTINGS: dict[str, str] = {}"
_UNIT_PLACEHOLDER = 'UNIT = ""'


@dataclass(frozen=True)
class RankSource:
    """A value of a cloud's metadata service: a machine's rank, or what ends in `-` and the rank; or its user data.

    For clouds that give the same user data to all machines of a launch.
    """

    endpoint: str  #: base URL of the metadata service
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    token_path: str = ""  #: a PUT on this path returns a token for the request; "": no token is needed
    token_headers: Mapping[str, str] = field(default_factory=dict)  #: of that PUT
    token_header: str = ""  #: the header of the request that carries the token


def render_boot_program(
    bootstrap: Bootstrap, rank: int | RankSource | None, *, user_data: RankSource | None = None, **environment: str
) -> str:
    """The first program of a machine: Python 3.9, a few kilobytes.

    `rank`: of the machine, or where the machine finds it; None: its environment has PERDURE_RANK. `user_data`: of a
    machine that may be stopped and started again: where it finds the program that it runs then. `environment`: more
    variables for the program, such as PERDURE_STATE_DIR, PERDURE_POWER_OFF (a shell command), or PERDURE_FOREGROUND (do
    not become a background process).
    """
    settings = {
        "PERDURE_ENDPOINT": bootstrap.endpoint,
        "PERDURE_TOKEN": bootstrap.token,
        "PERDURE_AGENT": bootstrap.artifacts["agent"],
        **environment,
    }
    if isinstance(rank, RankSource):
        settings["PERDURE_RANK_FROM"] = json.dumps(asdict(rank))
    elif rank is not None:
        settings["PERDURE_RANK"] = str(rank)
    if user_data is not None:
        settings["PERDURE_USER_DATA_FROM"] = json.dumps(asdict(user_data))
    if fingerprint := bootstrap.fingerprint:
        settings["PERDURE_FINGERPRINT"] = fingerprint
    source = _BOOT.read_text()
    for placeholder, value in (
        (_SETTINGS_PLACEHOLDER, f"SETTINGS = {json.dumps(settings)}"),
        (_UNIT_PLACEHOLDER, f"UNIT = {json.dumps(render_agent_unit())}"),
    ):
        assert placeholder in source
        source = source.replace(placeholder, value)
    return source


def init_program() -> str:
    """The first process of a container, which runs the first program from the variable PERDURE_BOOT."""
    return _INIT.read_text()


def render_agent_unit() -> str:
    """The unit of the agent without its comments: user data is limited."""
    return "".join(line for line in _UNIT.read_text().splitlines(keepends=True) if not line.startswith("#"))
