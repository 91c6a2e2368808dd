"""The layout of a checkpoint on disk: manifest, digests, names."""
