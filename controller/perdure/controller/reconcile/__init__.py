"""The loop that takes events, asks `perdure.recovery.step` what to do, and records the answer."""
