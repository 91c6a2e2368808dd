from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest

SERVER = Path(__file__).with_name("contract_server.py")


def _load(path):
    spec = importlib.util.spec_from_file_location("perdure_contract_server", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


contract_server = sys.modules.get("perdure_contract_server") or _load(SERVER)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch, tmp_path):
    """No test sees the controller of whoever runs it."""
    for name in [name for name in os.environ if name.startswith("PERDURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PERDURE_HOME", str(tmp_path / "home"))


@pytest.fixture
def controller(tmp_path):
    """A controller that speaks docs/api.md over HTTP; its state is open to the test."""
    with contract_server.serving(tmp_path) as state:
        yield state


@pytest.fixture
def client(controller):
    from perdure.sdk.client import Client
    from perdure.sdk.endpoint import Endpoint

    return Client(Endpoint(controller.url, contract_server.TOKEN))


@pytest.fixture
def embedded(tmp_path):
    """(home, environment) in which `python -m perdure.controller` is the contract server; its processes are ended."""
    package = tmp_path / "stand-in" / "perdure" / "controller"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(f"import runpy\nrunpy.run_path({str(SERVER)!r}, run_name='__main__')\n")
    home = tmp_path / "home"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    yield home, {**inherited, "PERDURE_HOME": str(home), "PYTHONPATH": str(tmp_path / "stand-in")}
    starts = home / "starts"
    for pid in starts.read_text().split() if starts.exists() else ():
        command = Path(f"/proc/{pid}/cmdline")
        if command.exists() and b"perdure.controller" in command.read_bytes():
            os.kill(int(pid), signal.SIGKILL)
