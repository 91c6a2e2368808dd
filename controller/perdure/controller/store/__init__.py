"""The controller's state in one SQL database: SQLite (WAL) by default, or PostgreSQL.

`tables` is the schema, `migrations/` its revisions, `codec` converts decision values to columns and back. `engine/`
opens the database, `records/` writes and loads rows, `queries/` answers users' requests, `logs/` and `blobs` keep data.
"""
