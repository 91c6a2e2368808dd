"""Saves the home of a cluster's node that has ended, if the controller asks for it after all.

The disk of a machine that is stopped keeps the home. But a cloud may refuse to stop it: then the machine is terminated,
and its home must be in a bucket before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from perdure.agent.link.client import ControllerClient, ControllerRejected, TokenRevoked, Unreachable
from perdure.agent.storage.node_storage import HomeNotKept, NodeStorage

POLL_S = 5.0
_MAX_PROBLEM_CHARS = 1000


class HomeRescue:
    """Asks the controller again and again, in a thread of its own, until the process ends or the home is saved."""

    def __init__(self, client: ControllerClient, storage: NodeStorage, log: Callable[[str], None]) -> None:
        self._client = client
        self._storage = storage
        self._log = log
        self._never = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="home-rescue", daemon=True).start()

    def _run(self) -> None:
        while not self._never.wait(POLL_S):
            try:
                if self.save_if_asked():
                    return
            except (TokenRevoked, ControllerRejected) as error:
                self._log(f"the controller does not say whether the home must be saved: {error}")
                return
            except Unreachable:
                continue

    def save_if_asked(self) -> bool:
        """Save the home if it must be saved, and report that. Returns whether it was. Raises as `ControllerClient`."""
        spec = self._client.spec()
        if not spec.get("rescue"):
            return False
        problem = ""
        try:
            self._storage.rescue_home(spec["home"])
        except HomeNotKept as error:
            problem = str(error)[:_MAX_PROBLEM_CHARS]
        self._log(f"the home was saved before the machine ends: {problem or 'yes'}")
        self._client.report_home(problem)
        return True
