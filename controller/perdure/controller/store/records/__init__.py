"""Reads and writes the rows of one table or subject each."""
