"""Backups of a home with a SQLite database: written while the controller runs, on request or on a schedule."""
