"""Files that the client reads or uploads for a task."""
