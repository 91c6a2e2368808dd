"""A PostgreSQL server for the tests."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.helpers.timing import scaled


@dataclass
class Postgres:
    """A PostgreSQL server on a port of this computer. It refuses to run as root, and then runs as `nobody`."""

    programs: Path
    folder: Path
    port: int
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def start(self) -> None:
        where = f"-h 127.0.0.1 -p {self.port} -k {self.folder}"
        quick = "-c fsync=off -c full_page_writes=off -c max_connections=200"
        options = ("-l", f"{self.folder}/log", "-o", f"{where} {quick}")
        self._run("pg_ctl", "-D", f"{self.folder}/data", "-w", *options, "start")

    def stop(self, mode: str = "fast") -> None:
        """`mode`: "fast" aborts open transactions, "immediate" is a crash."""
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
        """Run a statement with psql; return its output."""
        where = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "perdure", "-d", database)
        return self._run("psql", *where, "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statement)

    def create(self) -> None:
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
            timeout=scaled(120),
            check=False,
            **(nobody if os.getuid() == 0 else {}),
        )
        assert done.returncode == 0, f"{program} {words}: {done.stdout}"
        return str(done.stdout)


def postgres_programs() -> Path | None:
    """The folder of `initdb` and `pg_ctl`, which Debian keeps off PATH. None if the server is not installed."""
    on_path = shutil.which("initdb")
    beside = [Path(on_path).resolve().parent] if on_path else []
    candidates = [*beside, *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    return next((path for path in candidates if (path / "pg_ctl").exists() and (path / "postgres").exists()), None)
