"""Errors that keep the controller from starting."""

from __future__ import annotations


class CannotStart(Exception):
    """The controller cannot start here. The text says why and what to do."""
