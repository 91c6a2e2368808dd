"""`perdure jobs`."""
