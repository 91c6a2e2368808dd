"""Whether the bucket has a checkpoint, and how that is known."""
