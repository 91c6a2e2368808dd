"""Records in the audit log what a caller is about to do, where no transaction of the deed itself can."""

from __future__ import annotations

from typing import Any

from perdure.controller.api.access.permissions import Caller
from perdure.controller.store.access import audit


def record(caller: Caller, action: str, target: str = "", **detail: Any) -> None:
    """Append an entry in a transaction of its own. Call it before the deed, so that nothing is done without an entry.
    Raises what the database raises."""
    with caller.context.database.begin() as conn:
        audit.record(conn, caller.deed(action, target, **detail), caller.context.clock.now())
