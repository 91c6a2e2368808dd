"""Streams to the machines of jobs, and the files with which ssh finds them."""
