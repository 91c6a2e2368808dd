"""Confirmation prompts that are not answered."""

from __future__ import annotations

import click
import pytest

from perdure.cli.output import confirm


def test_confirm__that_is_interrupted_says_that_nothing_was_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> bool:
        raise click.Abort

    monkeypatch.setattr(confirm, "require_terminal_or_yes", lambda **_: None)
    monkeypatch.setattr(click, "confirm", interrupted)
    with pytest.raises(click.exceptions.Exit) as end:
        confirm.confirm("Launch it?", yes=False)
    assert end.value.exit_code == 1
    assert capsys.readouterr().err == "\nNothing was changed.\n"
    confirm.confirm("Launch it?", yes=True)
