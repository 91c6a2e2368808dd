"""The roles of controllers that `controller up` creates, and of their machines."""
