"""Runs the user's `setup` and `run`."""
