"""`perdure check` and `perdure gpus`: what the clouds offer."""
