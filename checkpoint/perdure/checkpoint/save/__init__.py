"""Writes a checkpoint: staging, manifest, background work and pruning."""
