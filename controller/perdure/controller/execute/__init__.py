"""Carries out recorded intents: calls clouds, within quotas and fair queues."""
