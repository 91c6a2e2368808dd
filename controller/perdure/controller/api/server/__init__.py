"""The HTTP server: sockets, protocols and the limits that hold before a request reaches a route."""
