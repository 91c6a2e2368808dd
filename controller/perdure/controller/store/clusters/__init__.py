"""The tables of clusters and of the buckets that keep their homes."""
