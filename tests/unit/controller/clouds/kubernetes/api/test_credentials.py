"""A token in a file, used by several threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perdure.controller.clouds.kubernetes.api.credentials import TokenFile


def test_token_file__may_be_forgotten_while_it_is_read(tmp_path: Path) -> None:
    class Interrupted(TokenFile):
        """Another thread calls `renew` after each look at the token."""

        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name == "_token":
                super().__setattr__("_token", None)
            return value

    path = tmp_path / "token"
    path.write_text("secret\n")
    credentials = Interrupted(path)
    for _ in range(2):
        assert credentials.headers() == {"Authorization": "Bearer secret"}


def test_token_file__is_renewed_for_every_thread_whose_request_was_rejected(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    credentials = TokenFile(tmp_path / "token")
    credentials.headers()
    assert credentials.renew()
    assert credentials.renew(), "a second thread, with the same rejected token"
