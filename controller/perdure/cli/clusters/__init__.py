"""The commands for clusters: `perdure launch`, `exec`, `status`, and the others with SkyPilot's names."""
