"""Routes for those who run the controller: its state, users, audit, metrics, upgrade."""
