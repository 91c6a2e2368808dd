"""Checkpoints that other libraries write. Each module needs its library, so only the programs that use it import it."""
