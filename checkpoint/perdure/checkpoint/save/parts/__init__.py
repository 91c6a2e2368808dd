"""What one process writes: its part of a step, and the copy of the state that it is written from."""
