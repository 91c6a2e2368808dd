"""What the controller believes, in one SQL database: SQLite (WAL) by default.

`tables` is the schema, `migrations/` how it came to be, `codec` how decision values become rows, `jobs` the guarded
writes, `intents` what is to be done outside, `queries` what users ask.
"""
