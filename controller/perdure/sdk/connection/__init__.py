"""The connection to a controller: finding it, calling it, and the types of its answers."""
