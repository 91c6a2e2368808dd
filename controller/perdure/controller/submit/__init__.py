"""How a job is admitted: compiled, checked against quotas and recorded."""
