"""The program that a new machine runs first (`boot.py`), with what it needs to know filled in."""

from __future__ import annotations

import json
from pathlib import Path

from perdure.controller.clouds.base import Bootstrap

_BOOT = Path(__file__).with_name("boot.py")
_PLACEHOLDER = "SETTINGS: dict[str, str] = {}"


def first_program(bootstrap: Bootstrap, **more: str) -> str:
    """For every machine of an attempt, or with PERDURE_RANK in `more` for one: Python 3.9, a few kilobytes.

    Where machines are not told their rank, PERDURE_RANK_FROM must say how they learn it: a key of `boot.RANKS`.
    """
    told = {
        "PERDURE_ENDPOINT": bootstrap.endpoint,
        "PERDURE_TOKEN": bootstrap.token,
        "PERDURE_AGENT": bootstrap.artifacts["agent"],
        **more,
    }
    if fingerprint := bootstrap.fingerprint:
        told["PERDURE_FINGERPRINT"] = fingerprint
    source = _BOOT.read_text()
    assert _PLACEHOLDER in source
    return source.replace(_PLACEHOLDER, f"SETTINGS = {json.dumps(told)}")
