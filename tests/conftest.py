"""Settings and fixtures of every test: the same environment on every machine, markers, time limits, a summary."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import shutil
import signal
import socket
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_timeout
import structlog
from hypothesis import HealthCheck, settings

from perdure.controller.store.engine import database
from support.helpers import known_computer
from support.helpers.postgres_server import Postgres, postgres_programs
from support.helpers.timing import scaled

# The same examples each time, and no deadlines: a test fails because of a change, not by chance or on a busy machine.
# HYPOTHESIS_PROFILE=deep searches for new examples.
settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("deep", settings.get_profile("ci"), derandomize=False, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# By default, structlog draws each traceback with the variables of all frames, which takes a tenth of a second.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)

# A process that a shell started in the background ignores Ctrl-C, and so would every process that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

known_computer.remember()

# Collecting ten thousand tests creates millions of objects and no garbage; searching for it takes a third of the time.
gc.disable()

KILLS = "kills_survived"
HISTORIES = "histories_survived"
STORM_KILLS = "storm_kills_survived"  # by what was killed, as JSON
OURS = ("PERDURE_", "SKYPILOT_", "SKY_")
# Variables that change how a terminal is written to.
TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE")


@pytest.fixture(scope="session", autouse=True)
def _surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(OURS) or name in TERMINAL]:
            patch.delenv(name)
        patch.setenv("PERDURE_HOME", str(tmp_path_factory.mktemp("default") / "home"))
        yield


_IDLE_IN_TRANSACTION = "idle_in_transaction_session_timeout=4s"
# Tests in these folders mostly wait for processes; the others mostly compute.
_WAITING = ("e2e", "integration", "seeds")
# A file with more tests than this is divided between the parts of `--part`.
_MAX_UNDIVIDED = 19


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="K/N", help="the K-th (1 to N) of N parts of the long tests")


_LEFT_OUT = re.compile(r"not \w+(?: and not \w+)*")
_MODULE_MARKS = re.compile(r"^pytestmark = (?:\[.*?\]|[^\n]*)", re.MULTILINE | re.DOTALL)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a module all of whose tests `-m "not slow and …"` leaves out: some import much."""
    wanted: str = config.getoption("markexpr")
    if collection_path.suffix != ".py" or not _LEFT_OUT.fullmatch(wanted):
        return None
    left_out = set(wanted.split()) - {"not", "and"}
    marks = _MODULE_MARKS.search(collection_path.read_text())
    return True if marks and left_out.intersection(re.findall(r"pytest\.mark\.(\w+)", marks[0])) else None


def pytest_collection_finish() -> None:
    """Search for garbage again, rarely, and never among what was collected: it stays to the end."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 50)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """The process that starts pytest-xdist's workers collects nothing itself."""
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if "postgres" in getattr(item, "fixturenames", ()) or "postgres" in map(str, parameters):
            item.add_marker(pytest.mark.postgres)
    if wanted := config.getoption("--part"):
        part, parts = map(int, wanted.split("/"))
        long = [item for item in items if item.get_closest_marker("long")]
        sizes = Counter(item.path for item in long)
        # The tests of one file may share what they set up, so that a small file stays whole.
        shares = list(dict.fromkeys(item.path if sizes[item.path] <= _MAX_UNDIVIDED else item for item in long))
        chosen = set(shares[part - 1 :: parts])
        left_out = {item for item in long if item not in chosen and item.path not in chosen}
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    if hasattr(config, "workerinput"):
        _spread_waiting_files(items)


def _spread_waiting_files(items: list[pytest.Item]) -> None:
    """Spread the files whose tests wait evenly among the others, so that no worker gets them all. Files stay whole.

    pytest-xdist gives each worker a run of consecutive tests. In the order of their names, the last minutes of a run
    would only wait, with idle cores.
    """
    tests = Path(__file__).parent
    files: dict[Path, tuple[bool, int]] = {}
    counts: Counter[bool] = Counter()
    for item in items:
        waits = item.path.relative_to(tests).parts[0] in _WAITING
        files.setdefault(item.path, (waits, counts[waits]))
        counts[waits] += 1
    items.sort(key=lambda item: files[item.path][1] / counts[files[item.path][0]])


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> bool:
    """Scale the limit of a whole test. It is doubled, since the machine may become busier while the test runs."""
    doubled = settings._replace(timeout=2 * scaled(settings.timeout))
    return bool(pytest_timeout.pytest_timeout_set_timer(item, doubled))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many kills the daemon (tests/crash) and the training runs and mounts survived, and the histories."""
    passed = [one for report in terminalreporter.stats.get("passed", []) for one in report.user_properties]
    if kills := [value for name, value in passed if name == KILLS]:
        terminalreporter.write_line(f"survived {sum(kills)} kills of the daemon in {len(kills)} scenarios")
    if simulated := [value for name, value in passed if name == HISTORIES]:
        from faultworld.totals import Totals

        totals = Totals()
        for values in map(json.loads, simulated):
            totals += Totals(**{**values, "fault_counts": Counter(values["fault_counts"])})
        terminalreporter.write_sep("-", "deterministic simulation")
        terminalreporter.write_line(str(totals))
    for counts in [json.loads(value) for name, value in passed if name == STORM_KILLS]:
        of_each = ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))
        terminalreporter.write_line(f"survived {sum(counts.values())} kills of the storm ({of_each})")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A running server. A test that stops it has to start it again."""
    programs = postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL's server is not installed: run scripts/ensure-postgres.sh")
    folder = Path(tempfile.mkdtemp(prefix="perdure-postgres-"))
    if os.getuid() == 0:
        shutil.chown(folder, "nobody")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Postgres(programs, folder, port)
    # A test's thread that a busy machine holds up for seconds is not frozen, and tests do not repeat its transaction.
    options = database._POSTGRES["connect_args"]
    patient = options["options"].replace(_IDLE_IN_TRANSACTION, f"{_IDLE_IN_TRANSACTION[:-2]}{int(scaled(60.0))}s")
    assert patient != options["options"]
    try:
        server.create()
        server.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(options, "options", patient)
            yield server
    finally:
        with contextlib.suppress(AssertionError):
            server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)
