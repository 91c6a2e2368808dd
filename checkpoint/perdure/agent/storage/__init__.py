"""Buckets, mounts and files on the node."""
