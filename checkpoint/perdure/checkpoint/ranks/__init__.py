"""Several processes that save and load together."""
