"""Amazon EC2. boto3 is imported when a call is about to be made, never before: a controller without AWS needs no SDK.

`cloud` is the `Cloud`; it asks `connections` for clients. What is bought is described by `catalog` (types, on-demand
prices), crawled by `prices` (zones, spot prices), put into words by `launching` (with `boot`, the machine's first
program), read back by `reading`, and what goes wrong is in `faults`.
"""
