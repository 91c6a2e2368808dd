"""`perdure serve`: services, whose replicas answer requests at one endpoint."""
