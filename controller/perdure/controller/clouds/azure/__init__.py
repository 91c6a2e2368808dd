"""Azure virtual machines. Its SDK is imported when a call is about to be made, never before.

`cloud` is the `Cloud`; it asks `connections` for a client. What is sold is in `catalog`; a launch is put into Azure's
words by `launching`, the place where machines stand is made by `places`, what Azure tells is read back by `reading`,
what it tells no more is remembered by `ended`, and what goes wrong is in `faults`.
"""
