"""Answers of the runtime interface, from a server that plays HAProxy."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from perdure.controller.api.serve import haproxy_socket
from perdure.controller.api.serve.haproxy_socket import CommandFailed, ServerCounts

STAT = """\
# pxname,svname,qcur,scur,stot,hrsp_1xx,hrsp_2xx,hrsp_4xx,
endpoint,FRONTEND,,4,50,0,38,9,
replicas,s0,0,3,40,,,,
replicas,BACKEND,2,3,41,0,38,0,
hold,BACKEND,0,0,0,0,0,0,

"""


def answering(path: Path, answer: str) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        link, _ = server.accept()
        link.recv(4096)
        link.sendall(answer.encode())
        link.close()
        server.close()

    threading.Thread(target=serve, daemon=True).start()


def test_counts__reads_the_table(tmp_path: Path) -> None:
    answering(tmp_path / "s", STAT)
    assert haproxy_socket.counts(tmp_path / "s") == [
        ServerCounts("endpoint", "FRONTEND", 4, 50, 0, {"2": 38, "4": 9}),
        ServerCounts("replicas", "s0", 3, 40),
        ServerCounts("replicas", "BACKEND", 3, 41, 2, {"2": 38}),
        ServerCounts("hold", "BACKEND", 0, 0),
    ]


def test_counts__rejects_another_answer(tmp_path: Path) -> None:
    answering(tmp_path / "s", "Permission denied\n")
    with pytest.raises(CommandFailed, match="Permission denied"):
        haproxy_socket.counts(tmp_path / "s")


def test_change__raises_what_haproxy_answers(tmp_path: Path) -> None:
    answering(tmp_path / "s", "No such server.\n\n")
    with pytest.raises(CommandFailed, match="No such server"):
        haproxy_socket.change(tmp_path / "s", "set server replicas/s9 state ready")


def test_run__raises_if_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="does not answer"):
        haproxy_socket.run(tmp_path / "s", "show stat")
