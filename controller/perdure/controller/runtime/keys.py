"""Types of keys that several packages of the controller share."""

from __future__ import annotations

AttemptKey = tuple[int, int, int]
"""(job id, task index, generation)"""

STOP_GRACE_S = 3600.0
"""How long a node whose attempt is gone may still connect, to receive the directive to stop."""
