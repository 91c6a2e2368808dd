"""The standard input of a command of a stream."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from perdure.agent.tunnel.command import _Input
from perdure.agent.tunnel.session import Session


@pytest.mark.parametrize("how", ["the user ended it", "nobody reads it"])
def test_closed_input__is_not_written_to_although_its_number_is_in_use_again(how: str) -> None:
    """As with `yes | perdure jobs exec 7 -- head -1`: data arrives after the end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        websocket: Any = ours
        session = Session(websocket)
        reader, writer = os.pipe()
        session.closes(writer)
        given = _Input(session, writer)
        os.close(reader)
        if how == "nobody reads it":
            given.write(b"first")
        else:
            given.close()
        assert not given.is_open
        other_reader, other_writer = os.pipe()
        os.set_blocking(other_reader, False)
        assert other_writer == writer, "the test needs the same number"
        given.write(b"second")
        with pytest.raises(BlockingIOError):
            os.read(other_reader, 100)
        os.close(other_reader)
        os.close(other_writer)
