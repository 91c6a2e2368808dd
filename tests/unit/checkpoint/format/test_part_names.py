"""The writer of an unfinished part, as other processes see it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.checkpoint.format.part_names import Writer


@pytest.mark.parametrize("namespace", ["pid", "time"])
def test_writer__of_another_namespace_is_on_another_machine(monkeypatch: pytest.MonkeyPatch, namespace: str) -> None:
    """PIDs, and start times, are relative to it: a living writer would look dead."""
    here, readlink = Writer.current(), os.readlink

    def elsewhere(path: str) -> str:
        return "elsewhere" if path == f"/proc/self/ns/{namespace}" else readlink(path)

    assert Writer.current() == here
    monkeypatch.setattr(os, "readlink", elsewhere)
    there = Writer.current()
    assert there.machine != here.machine
    assert not here.is_dead(there)


def test_writer__on_a_kernel_without_time_namespaces_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    readlink = os.readlink

    def old_kernel(path: str) -> str:
        if path == "/proc/self/ns/time":
            raise FileNotFoundError(path)
        return readlink(path)

    monkeypatch.setattr(os, "readlink", old_kernel)
    assert Writer.current().machine


def test_writer__of_another_host_name_is_on_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here, uname = Writer.current(), os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((uname[0], "other", *uname[2:])))
    assert Writer.current().machine != here.machine
