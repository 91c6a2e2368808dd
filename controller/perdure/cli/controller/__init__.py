"""`perdure controller`."""
