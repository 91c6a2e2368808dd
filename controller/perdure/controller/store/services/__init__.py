"""Services: their tables, what is written there, and how users see it."""
