"""How a cluster is launched, and how its jobs are admitted."""
