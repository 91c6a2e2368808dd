"""A program's state as a file: nested containers with arrays in them, and back, without pickle."""
