"""Streams of users to nodes: commands, ssh sessions and forwarded ports."""
