"""The endpoints of services: HAProxy as a supervised child, and the bytes between it and the replicas."""
