"""Commands that enter the machines of running jobs."""
