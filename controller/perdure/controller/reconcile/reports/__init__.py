"""What leaves the reconcile loop besides its decisions: counted here, for metrics."""
