"""The daemon's HTTP API (docs/api.md) and the agents' side of it (docs/agent-protocol.md)."""
