"""Keys, tokens, certificates and secrets."""
