"""Saves the home of a cluster's node that has ended, if the controller asks for it after all.

The disk of a machine that is stopped keeps the home. But a cloud may refuse to stop it. Where a machine that powers
itself off goes on costing money, it is terminated then, and its home must be in a bucket before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from perdure.agent.link.client import ControllerClient, ControllerRejected, TokenRevoked, Unreachable
from perdure.agent.storage.node_storage import HomeNotKept, NodeStorage

POLL_S = 5.0
LIMIT_S = 1200.0  # then the machine powers itself off
TRIES, RETRY_S = 3, 20.0  # of a save: most problems of an object store pass quickly
_MAX_PROBLEM_CHARS = 1000


class HomeRescue:
    """Asks the controller again and again whether the home must be saved."""

    def __init__(self, client: ControllerClient, storage: NodeStorage, log: Callable[[str], None]) -> None:
        self._client = client
        self._storage = storage
        self._log = log
        self._problem: str | None = None  # once the home was saved: why it was not, or ""

    def wait(self, *, poll_s: float = POLL_S, limit_s: float = LIMIT_S) -> None:
        """Wait until the home is saved, the attempt is gone, or the time is over; usually the machine is stopped."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            try:
                if self.save_if_asked():
                    return
            except (TokenRevoked, ControllerRejected) as error:
                self._log(f"the home need not be saved: {error}")
                return
            except Unreachable:
                pass
            except Exception as error:  # noqa: BLE001 - nobody else can save the home
                self._log(f"asking whether the home must be saved: {type(error).__name__}: {error}")
            time.sleep(poll_s)

    def save_if_asked(self) -> bool:
        """Save the home if it must be saved, and report that. Returns whether it was. Raises as `ControllerClient`."""
        spec = self._client.spec()
        if not spec.get("rescue"):
            return False
        if self._problem is None:
            self._problem = self._save(spec)
        self._client.report_home(self._problem)
        return True

    def _save(self, spec: Mapping[str, Any]) -> str:
        """Returns why it could not be saved."""
        problem = ""
        for tries in range(TRIES):
            time.sleep(RETRY_S if tries else 0.0)
            problem = self._try(spec)
            self._log(f"the home was not saved: {problem}" if problem else "the home was saved before the machine ends")
            if not problem:
                break
        return problem

    def _try(self, spec: Mapping[str, Any]) -> str:
        try:
            self._storage.rescue_home(spec["home"])
        except HomeNotKept as error:
            return str(error)[:_MAX_PROBLEM_CHARS]
        except Exception as error:  # noqa: BLE001 - the controller must know, or it waits in vain
            return f"saving the home: {type(error).__name__}: {error}"[:_MAX_PROBLEM_CHARS]
        return ""
