"""How a service is admitted, and how its replicas become jobs."""
