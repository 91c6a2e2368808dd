"""Where to try next: pure functions of a task, the market and `now`, chosen by `job_recovery.strategy`."""
