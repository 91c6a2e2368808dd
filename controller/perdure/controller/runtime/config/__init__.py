"""The configuration file and its sections."""
