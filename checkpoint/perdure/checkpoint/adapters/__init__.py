"""Checkpoints that other libraries write. Each module needs its library, and nothing here is imported unasked."""
