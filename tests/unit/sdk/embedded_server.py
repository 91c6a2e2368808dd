"""The contract server as the process of an embedded controller."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from pathlib import Path


def _load(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(arguments):
    """What `python -m perdure.controller serve --home DIR` does, as far as a client can see.

    Files in the home change its start: `broken` fails it, `frozen` suspends it, and `slow` delays it until removed.
    """
    server = _load("contract_server")
    assert arguments[:2] == ["serve", "--home"], arguments
    home = Path(arguments[2])
    if (home / "broken").exists():
        sys.exit("the database is of a newer version")
    with (home / "starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    if (home / "frozen").exists():
        os.kill(os.getpid(), signal.SIGSTOP)
    while (home / "slow").exists():
        sum(range(100_000))  # progress: CPU time
    (home / "token").touch(0o600)
    (home / "token").write_text(server.TOKEN)
    with server.serving(home) as state:
        (home / "controller.json").write_text(json.dumps({"endpoint": state.url, "pid": os.getpid()}))
        state.stopping.wait(60)
    (home / "controller.json").unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
