"""The pods of an attempt: how they are written, created, read and ended."""
