"""How the controller bears many jobs: measured on this machine, now."""
