"""Users, their tokens and roles, what belongs to whom, and the audit log."""
