"""What to do next with a job, as pure functions of values and `now`.

No I/O, no clock, no randomness: the daemon and the simulator run the same code. Read in this order: `statuses`,
`reasons`, `market`, `needs`, `job`, `events`, `actions`, `policies`, `step`.
"""
