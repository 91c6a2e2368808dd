"""Finds, verifies and loads a checkpoint, newest first."""
