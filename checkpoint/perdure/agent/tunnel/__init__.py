"""The node's end of streams: commands, ssh sessions and forwarded ports, over connections that the agent opens."""
