"""A browser brings a code, and its page shows what became of it."""

from __future__ import annotations

import io
import socket
import sys
import threading
import urllib.error
import urllib.request
from queue import SimpleQueue
from urllib.parse import urlsplit

import pytest

from perdure.cli.controller import browser_code
from perdure.cli.controller.browser_code import BrowserCode
from perdure.cli.errors import Failure

CODE = "c" * 22


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def address(browser: BrowserCode) -> tuple[int, str]:
    """The port and the path to which the browser brings the code."""
    _, port, path, _ = urlsplit(browser.link).fragment.split("/")
    return int(port), path


def bring(browser: BrowserCode) -> SimpleQueue[tuple[int, str]]:
    """A browser brings the code; gets the status and the text of the answer."""
    port, path = address(browser)
    answers: SimpleQueue[tuple[int, str]] = SimpleQueue()

    def ask() -> None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}?code={CODE}", timeout=30) as response:
                answers.put((response.status, response.read().decode()))
        except urllib.error.HTTPError as error:
            answers.put((error.code, error.read().decode()))

    threading.Thread(target=ask, daemon=True).start()
    return answers


@pytest.fixture(autouse=True)
def _nobody_pastes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)


def test_browser__is_told_that_the_command_line_is_signed_in_once_it_is() -> None:
    with BrowserCode("http://x") as browser:
        answers = bring(browser)
        assert browser.wait() == CODE
        assert answers.empty()
        browser.confirm()
    status, text = answers.get(timeout=30)
    assert (status, "is signed in" in text) == (200, True)


def test_browser__is_told_that_the_sign_in_has_failed() -> None:
    with BrowserCode("http://x") as browser:
        answers = bring(browser)
        browser.wait()
    status, text = answers.get(timeout=30)
    assert (status, "is not signed in" in text) == (409, True)


@pytest.mark.parametrize("target", [b"/\xe9", b"//[", b"/?code=" + CODE.encode()])
def test_requests_of_others__are_not_answered(target: bytes) -> None:
    with (
        BrowserCode("http://x") as browser,
        socket.create_connection(("127.0.0.1", address(browser)[0]), timeout=30) as connection,
    ):
        connection.sendall(b"GET " + target + b" HTTP/1.0\r\n\r\n")
        assert connection.recv(1000).split()[1] == b"404"


def test_wait__ends_with_the_input_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("no code\n"))
    monkeypatch.setattr(browser_code, "WAIT_S", 5.0)
    with BrowserCode("http://x") as browser, pytest.raises(Failure, match="no code was pasted"):
        browser.wait()
    monkeypatch.setattr(sys, "stdin", Terminal(f"no code\n{CODE}\n"))
    with BrowserCode("http://x") as browser:
        assert browser.wait() == CODE
