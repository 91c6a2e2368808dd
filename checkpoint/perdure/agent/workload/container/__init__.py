"""The container of a task: what its scripts run in, while the agent, its mounts and the network stay outside."""
