"""Decides what the node does next."""
