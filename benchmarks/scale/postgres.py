"""The PostgreSQL server of a benchmark, seen from outside: its CPU time, and whether its database is empty."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg

from perdure.controller.store.engine.database import psycopg_url

_TICKS = os.sysconf("SC_CLK_TCK")


class Server:
    """`url` is that of one of its databases. Its CPU time is available if it runs on this machine."""

    def __init__(self, url: str) -> None:
        self._url = psycopg_url(url)
        self._pid = self._postmaster()

    @property
    def is_here(self) -> bool:
        return self._pid > 0

    @property
    def cpu_s(self) -> float:
        """CPU time of the server and all its processes, as the kernel counts it; 0.0 if it runs elsewhere."""
        if not self.is_here:
            return 0.0
        ended = sum(_times(self._pid)[:4])  # its own, and that of its processes that have ended
        children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
        return (ended + sum(sum(_times(int(child))[:2]) for child in children)) / _TICKS

    def is_empty(self) -> bool:
        with psycopg.connect(self._url) as conn:
            count = conn.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
        return count == (0,)

    def clear(self) -> None:
        """Remove every table of the database."""
        with psycopg.connect(self._url, autocommit=True) as conn:
            for (name,) in conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall():
                conn.execute(psycopg.sql.SQL("DROP TABLE {} CASCADE").format(psycopg.sql.Identifier(name)))

    def _postmaster(self) -> int:
        """The process whose child serves our connection; 0 if it runs on another machine."""
        with psycopg.connect(self._url) as conn:
            backend = conn.info.backend_pid
            try:
                if not Path(f"/proc/{backend}/comm").read_text().startswith("postgres"):
                    return 0
                return int(_fields(backend)[1])
            except OSError:
                return 0


def _fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _times(pid: int) -> tuple[int, int, int, int]:
    """Ticks: user and system of the process, the same of its children that have ended."""
    try:
        user, system, ended_user, ended_system = map(int, _fields(pid)[11:15])
    except OSError:  # it has just ended; its parent counts its time
        return 0, 0, 0, 0
    return user, system, ended_user, ended_system
