"""Metrics of the daemon in the text formats of Prometheus and OpenMetrics."""
