"""Types of keys that several packages of the controller share."""

from __future__ import annotations

AttemptKey = tuple[int, int, int]
"""(job id, task index, generation)"""
