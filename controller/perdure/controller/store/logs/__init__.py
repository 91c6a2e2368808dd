"""Logs of jobs: stores, readers, subscriptions and the transcript that users read."""
