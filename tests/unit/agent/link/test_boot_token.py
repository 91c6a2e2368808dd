"""The agent trades its boot token once, whatever dies in between."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure.agent.link import boot_token
from perdure.agent.link.client import ControllerRejected, Unreachable
from support.helpers.module_time import replace_time


class Client:
    """A controller that loses its first answers. It gives the token to the first nonce alone."""

    def __init__(self, lost_answers: int = 0) -> None:
        self.nonces: list[str] = []
        self._lost = lost_answers

    def trade_token(self, nonce: str) -> str:
        self.nonces.append(nonce)
        if nonce != self.nonces[0]:
            raise ControllerRejected("the controller answered 403 to /token")
        if len(self.nonces) <= self._lost:
            raise Unreachable("the connection broke")
        return "pd2.real"


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_time(monkeypatch, boot_token, sleep=lambda _seconds: None)


def trade(client: Client, record: Path, timeout_s: float = 60.0) -> str | None:
    return boot_token.trade(client, record, timeout_s=timeout_s, log=lambda _line: None)  # type: ignore[arg-type]


def test_trade__repeats_with_the_same_nonce_until_an_answer_arrives(tmp_path: Path) -> None:
    client = Client(lost_answers=3)
    assert trade(client, tmp_path / "token") == "pd2.real"
    assert len(client.nonces) == 4
    assert len(set(client.nonces)) == 1


def test_trade__is_continued_by_the_next_agent(tmp_path: Path) -> None:
    """The first agent was killed after its call had been recorded, and before the answer arrived."""
    client = Client(lost_answers=1)
    assert trade(client, tmp_path / "token", timeout_s=0.0) is None
    assert json.loads((tmp_path / "token").read_text()).keys() == {"nonce"}
    assert trade(client, tmp_path / "token") == "pd2.real"
    assert len(set(client.nonces)) == 1
    calls = len(client.nonces)
    assert trade(client, tmp_path / "token") == "pd2.real"
    assert len(client.nonces) == calls, "a restarted agent has it on disk"
    assert (tmp_path / "token").stat().st_mode & 0o077 == 0


def test_trade__of_a_token_that_somebody_else_has_traded_is_rejected(tmp_path: Path) -> None:
    client = Client()
    client.nonces.append("of somebody else")
    with pytest.raises(ControllerRejected):
        trade(client, tmp_path / "token")


def test_boot_token__is_told_by_its_format() -> None:
    assert boot_token.is_boot_token("pdb1.7.0.1..abc.def")
    assert not boot_token.is_boot_token("pd2.abc.7.0.1.def")
