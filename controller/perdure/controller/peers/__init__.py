"""Several controllers on one database: leases, ownership of jobs, messages between daemons, takeover."""
