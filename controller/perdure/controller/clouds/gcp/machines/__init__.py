"""Requests that create machines, and the parsing of what the cloud returns."""
