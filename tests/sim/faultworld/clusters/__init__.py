"""Clusters in the simulated world: plans, users, machines with slots, the controller's parts, and what must hold."""
