"""Google Compute Engine. Its SDK takes seconds and much memory to import: that is done when a call is about to be made.

`cloud` is the `Cloud`; it asks `connections` for clients. What is sold `market` puts together: what zones have is read
by `machines`, prices by `billing`, both by the words of `families`; until then `catalog` has a table. What is bought is
put into words by `launching`, read back by `reading` (machines) and `history` (what became of those that are no more),
and what goes wrong is in `faults`.
"""
