"""Which checkpoints and files go: the rule, what it removes, and what failed saves have left."""
