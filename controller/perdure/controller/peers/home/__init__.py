"""What a home remembers of its database, and what happens when the database is older than that."""
