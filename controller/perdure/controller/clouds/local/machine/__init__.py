"""The inside of a local machine: its processes, file system, isolation and metadata."""
