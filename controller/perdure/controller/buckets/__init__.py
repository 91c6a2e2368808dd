"""Bucket stores: S3, Google Cloud Storage, Azure and the local disk, and the buckets of jobs in them."""
