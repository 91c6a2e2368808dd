"""What a cluster offers: its nodes, their accelerators, markets and prices."""
