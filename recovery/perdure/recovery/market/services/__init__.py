"""Services: how many replicas there shall be, and which are launched and retired. Pure, like all of `recovery`."""
