"""controller.json: where callers on this computer reach the home's running controller, and where its token is."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path

from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.runtime.security.keyring import TOKEN_FILE

_NAME = "controller.json"


def publish(home: Path, address: str, fingerprint: str | None, keyring: Path) -> None:
    """Write the file. `fingerprint`: of the TLS certificate, if there is one. `keyring`: the folder of the token."""
    record: dict[str, object] = {"endpoint": address, "pid": os.getpid(), "version": version("perdure")}
    if keyring != home:
        record["token_file"] = str((keyring / TOKEN_FILE).absolute())
    if fingerprint is not None:
        record["fingerprint"] = fingerprint
    path = home / _NAME
    temporary = path.with_suffix(".tmp")
    temporary.touch(mode=0o600)
    temporary.write_text(json.dumps(record) + "\n")
    temporary.replace(path)
    failpoint("endpoint.published")


def remove(home: Path) -> None:
    (home / _NAME).unlink(missing_ok=True)
