"""How to install an extra."""

from __future__ import annotations

import pytest

from perdure.sdk.connection import installation


def test_install_command__uses_the_index_only_after_the_first_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "IS_PUBLISHED", False)
    assert installation.install_command("aws") == "pip install '.[aws]' in your checkout of Perdure"
    monkeypatch.setattr(installation, "IS_PUBLISHED", True)
    assert installation.install_command("aws").startswith("pip install 'perdure[aws")
