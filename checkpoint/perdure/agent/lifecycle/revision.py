"""Another version of a service on the same machine: the agent ends the program, and begins anew with a newer node spec.

The controller has taken the replica out of the rotation before. What an earlier `setup` has installed stays, as do the
files of the user; the files of the uploads are replaced. Killed at any moment, an agent that is started again goes on:
the stored node spec is the last thing that is forgotten.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure.agent.lifecycle.desired_state import DesiredState
from perdure.agent.link.websocket import WebSocket
from perdure.agent.node_spec import NodeSpec
from perdure.agent.paths import NodePaths
from perdure.agent.workload.environment import workdir_path

AGENT_COMMAND = "import sys; sys.path.insert(0, sys.argv[1]); from perdure.agent.main import main; sys.exit(main())"


class RevisionStream:
    """A `Stream` of the channel: receives which revision of the node spec is wanted."""

    def __init__(self, desired: DesiredState) -> None:
        self._desired = desired

    def attach(self, ws: WebSocket, welcome: dict[str, Any]) -> None:
        """Nothing is sent: the hello says which revision runs."""

    def detach(self) -> None:
        """Nothing is lost: the controller sends it again."""

    def handle_message(self, message: dict[str, Any]) -> None:
        if message.get("type") == "revise":
            self._desired.want_revision(int(message["revision"]))


def forget(spec: NodeSpec, paths: NodePaths, desired: DesiredState) -> None:
    """Forget what has run here, so that the next start of the agent begins anew. Nothing of it may run any more.

    Raises OSError.
    """
    for name in ("run", "setup"):
        if paths.stage(name).exists():
            shutil.rmtree(str(paths.stage(name)))
    if spec.workdir and "git" in spec.workdir:  # a clone is never updated
        shutil.rmtree(str(workdir_path(os.environ)), ignore_errors=True)
    desired.update(prepared=False)
    if paths.spec.exists():
        paths.spec.unlink()


def start_again(library: Path, token: str, log: Callable[[str], None]) -> int:
    """Replace this process by a new agent. Returns an exit code, with which it is started again, if that fails."""
    command = [sys.executable or "python3", "-IS", "-c", AGENT_COMMAND, str(library)]
    environ = {name: value for name, value in os.environ.items() if name != "PERDURE_NOTE"}  # it was logged already
    try:
        os.execve(command[0], command, {**environ, "PERDURE_TOKEN": token})  # noqa: S606 - no shell
    except OSError as error:
        log(f"the agent cannot start again by itself: {error}")
    return 3
