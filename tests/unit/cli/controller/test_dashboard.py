"""`perdure dashboard`."""

from __future__ import annotations

import re
import webbrowser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from unit.cli.commands import RunPerdure
from unit.sdk.contract_server import Controller


def test_dashboard__prints_a_link_with_the_code_in_its_fragment(perdure: RunPerdure, server: Controller) -> None:
    result = perdure("dashboard", "--no-browser")
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == f"{server.url}/#login=one-time-code", "the link alone, for scripts"
    assert "works once" in result.stderr


def test_dashboard__prints_the_link_where_no_browser_can_be_opened(
    perdure: RunPerdure, server: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert perdure("dashboard").stdout.strip() == f"{server.url}/#login=one-time-code"


def test_dashboard__opens_a_private_page_that_leads_to_the_link(
    perdure: RunPerdure, server: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setenv("DISPLAY", ":99")
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    result = perdure("dashboard")
    assert "one-time-code" not in result.output
    (address,) = opened
    assert "one-time-code" not in address, "arguments of processes are public"
    page = Path(unquote(urlsplit(address).path))
    assert page.stat().st_mode & 0o777 == 0o600
    assert re.search(r"url=([^\"]+)", page.read_text())[1] == f"{server.url}/#login=one-time-code"  # type: ignore[index]
    page.unlink()


def test_dashboard__of_a_command_line_that_signs_no_browser_in_is_opened_without_a_code(
    perdure: RunPerdure, server: Controller
) -> None:
    server.signs_browsers_in = False
    result = perdure("dashboard", "--no-browser")
    assert (result.exit_code, result.stdout.strip()) == (0, server.url)
    assert "sign in as for `perdure login`" in result.stderr
