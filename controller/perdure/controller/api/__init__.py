"""The daemon's HTTP API (docs/reference/api.md) and the agents' side of it (docs/reference/agent-protocol.md)."""
