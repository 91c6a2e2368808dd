"""The loss of an attempt's machines: `detection` says when they count as lost, `evidence` what that says of the offer,
and `response` is the rule that winds the attempt down and recovers the task."""
