"""A controller that keeps the API's contract, a client of it, and an environment that starts it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.sdk.connection.client import Client
from perdure.sdk.connection.endpoint import Endpoint
from unit.sdk import contract_server
from unit.sdk.contract_server import Controller

PROCESS = Path(__file__).with_name("embedded_server.py")

SERVER = Path(contract_server.__file__)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test uses the controller of the user who runs it."""
    for name in [name for name in os.environ if name.startswith("PERDURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PERDURE_HOME", str(tmp_path / "home"))


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    """A controller with the API of docs/reference/api.md over HTTP; tests can change its state."""
    with contract_server.serving(tmp_path) as state:
        yield state


@pytest.fixture
def client(controller: Controller) -> Client:
    return Client(Endpoint(controller.url, contract_server.TOKEN))


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """(home, environment) in which `python -m perdure.controller` is the contract server. Its processes are killed."""
    package = tmp_path / "stand-in" / "perdure" / "controller"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(f"import runpy\nrunpy.run_path({str(PROCESS)!r}, run_name='__main__')\n")
    home = tmp_path / "home"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    yield home, {**inherited, "PERDURE_HOME": str(home), "PYTHONPATH": str(tmp_path / "stand-in")}
    starts = home / "starts"
    for pid in starts.read_text().split() if starts.exists() else ():
        command = Path(f"/proc/{pid}/cmdline")
        if command.exists() and b"perdure.controller" in command.read_bytes():
            os.kill(int(pid), signal.SIGKILL)
