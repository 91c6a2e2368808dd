"""Google Compute Engine. Its SDK takes seconds and much memory to import: the first call does that.

`cloud` implements `Cloud` and `sdk/connections` makes its clients. `pricing/region` combines machine types
(`machine_types`) and prices (`retail_prices`), both with the names of `machine_families`; `catalog` has the built-in
table. `machines/launch_request` builds the body of a launch, `machines/parse` reads instances back,
`machines/tombstones` finds out what became of deleted ones, and `faults` classifies errors.
"""
