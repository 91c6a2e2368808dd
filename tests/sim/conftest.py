"""Sums up what all histories of a test run survived, whichever worker ran them."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    met: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        met += Counter({name.removeprefix("sim:"): n for name, n in report.user_properties if name.startswith("sim:")})
    count = met.pop("histories", 0)
    if count:
        from faultworld.__main__ import totals

        terminalreporter.write_sep("-", "deterministic simulation")
        terminalreporter.write_line(totals(count, met))
