"""Periodic work: sweeps of orphaned machines, retention, probes."""
