"""Read-only queries: job lists, searches, counts, machine usage."""
