"""Sends notifications from the outbox to their channels."""
