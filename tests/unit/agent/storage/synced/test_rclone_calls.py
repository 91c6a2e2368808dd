from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from perdure.agent.storage.rclone import Remote
from perdure.agent.storage.synced.rclone_calls import CallFailed, RcloneCalls, can_be_named
from support.helpers.timing import wait_until

CALLER = """
import sys
from pathlib import Path
from perdure.agent.storage.rclone import Remote
from perdure.agent.storage.synced.rclone_calls import RcloneCalls
remote = Remote("perdureabc", "local", "b", "/nowhere")
RcloneCalls(Path(sys.argv[1]), remote, names_file=Path(sys.argv[1] + ".names")).call("copy", remote.url)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """In rclone's place: it goes on until it is killed."""
    path = tmp_path / "rclone"
    path.write_text('#!/bin/sh\necho $$ > "$0.new"\nmv "$0.new" "$0.pid"\nwhile :; do sleep 0.1; done\n')
    path.chmod(0o755)
    return path


def calls(script: Path) -> RcloneCalls:
    remote = Remote("perdureabc", "local", "b", "/nowhere")
    return RcloneCalls(script, remote, names_file=script.with_name("names"))


def pid_of(script: Path) -> int:
    file = script.with_name("rclone.pid")
    wait_until(file.exists, "the call", 20)
    return int(file.read_text())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_call__ends_with_its_agent(script: Path) -> None:
    agent = subprocess.Popen([sys.executable, "-c", CALLER, str(script)])
    pid = pid_of(script)
    agent.kill()
    agent.wait()
    wait_until(lambda: not is_alive(pid), "the end of the call", 20)


def test_leftovers__of_this_remote_alone_are_killed(script: Path) -> None:
    ours = subprocess.Popen([str(script), "copy", "/x", "perdureabc:/nowhere"], start_new_session=True)
    others = subprocess.Popen([str(script), "copy", "/x", "perdureabcd:/nowhere"], start_new_session=True)
    mount = subprocess.Popen([str(script), "mount", "perdureabc:/nowhere", "/x"], start_new_session=True)
    try:
        waiter = threading.Thread(target=ours.wait, daemon=True)  # as init would collect it
        waiter.start()
        pid_of(script)
        assert calls(script).end_leftovers()
        waiter.join(20)
        assert ours.returncode == -signal.SIGKILL
        assert others.poll() is None
        assert mount.poll() is None
    finally:
        for one in (ours, others, mount):
            one.kill()
            one.wait()


def test_end__fails_the_call_and_those_that_follow(script: Path) -> None:
    one, failures = calls(script), []

    def call() -> None:
        try:
            one.call("copy", "perdureabc:/nowhere")
        except CallFailed as error:
            failures.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    pid_of(script)
    one.end()
    thread.join(20)
    assert [error.objects for error in failures] == [None], "each file may be one that was not uploaded"
    with pytest.raises(CallFailed, match="it was ended"):
        one.call("copy", "perdureabc:/nowhere")


@pytest.mark.parametrize("name", ["a\nb", "cr\r", "q\u201b.bin", "tab\t", "\u2400", os.fsdecode(b"\xff")])
def test_name__that_rclone_stores_in_another_form_is_refused(name: str, script: Path) -> None:
    assert not can_be_named(name)
    with pytest.raises(ValueError, match="taken for another"):
        calls(script).delete([name])


@pytest.mark.parametrize("name", ["#c", ";c", " lead", "trail ", "full\uff0eb", "ü"])
def test_name__of_other_characters_is_taken(name: str) -> None:
    assert can_be_named(name)


def test_remote__is_named_as_a_directory(tmp_path: Path) -> None:
    """Where an object store does not answer, rclone takes a prefix without a slash for a file, and ends at once."""
    script = tmp_path / "rclone"
    script.write_text(
        '#!/bin/sh\nfor word; do case $word in perdureabc:*) echo $1 $word >> "$0.log";; esac; done\necho []\n'
    )
    script.chmod(0o755)
    one = calls(script)
    one.download("/x")
    one.upload("/x", ["a"])
    one.delete(["a"])
    one.sizes()
    named = [line.split() for line in script.with_name("rclone.log").read_text().splitlines()]
    assert named == [[verb, "perdureabc:/nowhere/"] for verb in ("copy", "copy", "delete", "lsjson")]
