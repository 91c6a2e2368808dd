"""Every test starts in the same surroundings, whoever runs it, and finds no controller of theirs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# The same examples each time, and no deadlines: a red test is a change's doing, not luck's or a busy machine's.
# New examples are searched for with HYPOTHESIS_PROFILE=deep.
settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("deep", settings.get_profile("ci"), derandomize=False, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

KILLS = "kills_survived"
OURS = ("HOLDFAST_", "SKYPILOT_", "SKY_")
# What changes how a terminal is written to.
TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE")


@pytest.fixture(scope="session", autouse=True)
def _surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(OURS) or name in TERMINAL]:
            patch.delenv(name)
        patch.setenv("HOLDFAST_HOME", str(tmp_path_factory.mktemp("nobodys") / "home"))
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How often a daemon was killed (tests/crash) with nothing lost, in all."""
    told = [
        value for r in terminalreporter.stats.get("passed", []) for name, value in r.user_properties if name == KILLS
    ]
    if told:
        terminalreporter.write_line(f"survived {sum(told)} kills of the daemon in {len(told)} stories")
