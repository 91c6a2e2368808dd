"""The poller of notice sources. Its work with a real source is tested with each source."""

from __future__ import annotations

import pytest

from perdure.agent.node_spec import NoticeSettings
from perdure.agent.notices.poller import NoticePoller


def test_poller__rejects_an_unknown_source() -> None:
    with pytest.raises(ValueError, match="imds-v2"):
        NoticePoller(
            NoticeSettings("oracle", "http://x", 1.0), "http://x", on_notice=lambda _: None, log=lambda _: None
        )
