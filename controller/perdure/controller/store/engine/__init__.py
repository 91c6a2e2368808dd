"""Connections to SQLite and PostgreSQL, transactions, and notifications."""
