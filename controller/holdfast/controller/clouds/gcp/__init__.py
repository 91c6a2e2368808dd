"""Google Compute Engine. Its SDK takes seconds and much memory to import: that is done when a call is about to be made.

`cloud` is the `Cloud`; it asks `connections` for clients. What is bought is described by `catalog` (types and prices),
found by `market` (which zone has which types), put into words by `launching`, read back by `reading` (machines) and
`history` (what became of those that are no more), and what goes wrong is in `faults`.
"""
