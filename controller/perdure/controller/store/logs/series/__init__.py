"""What nodes report over time, as series of a bounded size (ADR 32)."""
