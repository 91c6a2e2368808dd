"""The HTTP client of Kubernetes API servers: contexts, credentials, requests and watches."""
