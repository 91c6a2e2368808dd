"""Which machine types a region sells, and their prices."""
