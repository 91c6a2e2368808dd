"""Builds the documentation site: `python -m scripts.docs`, or `make docs`."""
