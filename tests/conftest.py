"""Every test starts in the same surroundings, whoever runs it, and finds no controller of theirs."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# The same examples each time, and no deadlines: a red test is a change's doing, not luck's or a busy machine's.
# New examples are searched for with HYPOTHESIS_PROFILE=deep.
settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("deep", settings.get_profile("ci"), derandomize=False, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# What was started in a shell's background ignores Ctrl-C, and so would all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

KILLS = "kills_survived"
HISTORIES = "histories_survived"
STORM_KILLS = "storm_kills_survived"  # by what was killed, as JSON
OURS = ("PERDURE_", "SKYPILOT_", "SKY_")
# What changes how a terminal is written to.
TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE")


@pytest.fixture(scope="session", autouse=True)
def _surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(OURS) or name in TERMINAL]:
            patch.delenv(name)
        patch.setenv("PERDURE_HOME", str(tmp_path_factory.mktemp("nobodys") / "home"))
        yield


# Whole folders that start many processes, servers or networks each: timed on one busy computer only so far.
LONG = (
    "crash",
    "e2e/several",
    "e2e/test_secrets.py",
    "e2e/aws",
    "e2e/azure",
    "integration/network",
    "integration/api",
    "integration/aws",
    "integration/azure",
    "integration/gcp",
    "fuzz",
)


MANY = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="K/N", help="the K-th (1 to N) of N parts of the long tests")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if any(item.path.is_relative_to(here / folder) for folder in LONG):
            item.add_marker(pytest.mark.long)
    if said := config.getoption("--part"):
        part, parts = map(int, said.split("/"))
        long = [item for item in items if item.get_closest_marker("long")]
        sizes = Counter(item.path for item in long)
        # Neighbours in a file may follow one upon the other; those of a file of many are alike.
        shares = list(dict.fromkeys(item.path if sizes[item.path] < MANY else item for item in long))
        chosen = set(shares[part - 1 :: parts])
        left_out = {item for item in long if item not in chosen and item.path not in chosen}
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How often a daemon (tests/crash) or a training run and its mount (the storm) were killed with nothing lost."""
    passed = [one for report in terminalreporter.stats.get("passed", []) for one in report.user_properties]
    if told := [value for name, value in passed if name == KILLS]:
        terminalreporter.write_line(f"survived {sum(told)} kills of the daemon in {len(told)} stories")
    if simulated := [value for name, value in passed if name == HISTORIES]:
        from faultworld.totals import Totals

        parts = (Totals(**{**said, "met": Counter(said["met"])}) for said in map(json.loads, simulated))
        terminalreporter.write_sep("-", "deterministic simulation")
        terminalreporter.write_line(str(sum(parts, Totals())))
    for counts in [json.loads(value) for name, value in passed if name == STORM_KILLS]:
        of_each = ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))
        terminalreporter.write_line(f"survived {sum(counts.values())} kills of the storm ({of_each})")


@dataclass
class Postgres:
    """A PostgreSQL server of the tests' own, on a port of this computer. It refuses to run as root, so it does not."""

    programs: Path
    folder: Path
    port: int
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def start(self) -> None:
        where = f"-h 127.0.0.1 -p {self.port} -k {self.folder}"
        quick = "-c fsync=off -c full_page_writes=off -c max_connections=200"
        said = ("-l", f"{self.folder}/log", "-o", f"{where} {quick}")
        self._run("pg_ctl", "-D", f"{self.folder}/data", "-w", *said, "start")

    def stop(self, mode: str = "fast") -> None:
        """`mode`: "fast" breaks off what is under way, "immediate" is a crash."""
        self._run("pg_ctl", "-D", f"{self.folder}/data", "-w", "-m", mode, "stop")

    def restart(self) -> None:
        self.stop()
        self.start()

    def new_database(self) -> str:
        """The URL of a new database."""
        name = f"t{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name}")
        return f"postgresql://perdure@127.0.0.1:{self.port}/{name}"

    def sql(self, statement: str, database: str = "postgres") -> str:
        """What psql says to it."""
        where = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "perdure", "-d", database)
        return self._run("psql", *where, "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statement)

    def make(self) -> None:
        self._run("initdb", "-D", f"{self.folder}/data", "-A", "trust", "-U", "perdure", "--no-sync", "-E", "UTF8")

    def _run(self, program: str, *words: str) -> str:
        nobody: Any = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}
        done = subprocess.run(
            [self.programs / program, *words],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(self.folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
            **(nobody if os.getuid() == 0 else {}),
        )
        assert done.returncode == 0, f"{program} {words}: {done.stdout}"
        return str(done.stdout)


def _postgres_programs() -> Path | None:
    """The folder of initdb and its like: Debian keeps it off PATH."""
    on_path = shutil.which("initdb")
    beside = [Path(on_path).resolve().parent] if on_path else []
    candidates = [*beside, *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    return next((path for path in candidates if (path / "pg_ctl").exists() and (path / "postgres").exists()), None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server that runs; a test that stops it starts it again."""
    programs = _postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL's server is not installed: run scripts/ensure-postgres.sh")
    folder = Path(tempfile.mkdtemp(prefix="perdure-postgres-"))
    if os.getuid() == 0:
        shutil.chown(folder, "nobody")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Postgres(programs, folder, port)
    try:
        server.make()
        server.start()
        yield server
    finally:
        with contextlib.suppress(AssertionError):
            server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)
