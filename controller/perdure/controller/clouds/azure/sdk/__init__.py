"""Loads the cloud's SDK lazily and keeps its clients."""
