"""Amazon EC2. boto3 is imported by the first call: a controller without AWS does not need the SDK.

`cloud` implements `Cloud` and `sdk/connections` makes its clients. `pricing/region_prices` fetches zones and prices;
`pricing/catalog` has the built-in table. `machines/launch_request` builds the parameters of a launch, `machines/parse`
reads instances back, and `faults` classifies errors.
"""
