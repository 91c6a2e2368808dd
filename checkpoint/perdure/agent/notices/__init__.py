"""Where interruption notices enter: the metadata services of clouds."""
