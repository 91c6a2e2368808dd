"""One module per strategy that `job_recovery.strategy` can name, and the one for jobs of clusters (`granted_slot`)."""
