"""Google's own description of compute v1."""

from __future__ import annotations

from google_discovery import Call, Discovery, Invalid

__all__ = ["Call", "Invalid", "check", "check_answer", "read"]

_COMPUTE = Discovery("compute", "v1")
read, check, check_answer = _COMPUTE.read, _COMPUTE.check, _COMPUTE.check_answer
