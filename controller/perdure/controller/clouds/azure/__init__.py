"""Azure virtual machines. The SDK is imported by the first call.

`cloud` implements `Cloud` and `sdk/connections` makes its clients. `pricing/region_prices` fetches sizes and prices;
`pricing/catalog` has the built-in table. `machines/launch_request` builds the body of a machine, `machines/networks`
creates resource groups and networks, `machines/parse` reads machines back, `machines/tombstones` remembers deleted
ones, and `faults` classifies errors.
"""
