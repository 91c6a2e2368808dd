"""Notifications: their events, and the calls of the API that are about them."""
